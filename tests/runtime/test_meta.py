"""Tensors without memory: the shapes that a call would give, and the errors that it would raise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from attending import VARIANTS, drawn, trainable
from test_calls import CALLS, INPUTS, K, Q, V

# What is no matter of shapes, dtypes and devices is judged when kernels are launched.
LATER = ("scale is nan", "scale is inf", "scale is beyond float32")


def meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_shapes_of_results_and_gradients(gallery_module: Callable[[str], ModuleType], name: str) -> None:
    call, leaves = trainable(name, drawn(name))
    moved = {id(leaf): meta(leaf.detach()).requires_grad_() for leaf in leaves}
    q, k, v = (moved[id(tensor)] for tensor in (call.q, call.k, call.v))
    inputs = {key: moved.get(id(value), meta(value)) for key, value in call.keywords.items()}
    out, lse = gallery_module(name).attention(q, k, v, return_lse=True, **inputs)
    assert (out.shape, out.dtype, out.device.type) == ((2, 4, 20, 24), torch.float32, "meta")
    assert (lse.shape, lse.dtype, lse.device.type) == ((2, 4, 20), torch.float32, "meta")
    gradients = torch.autograd.grad(out.sum() + lse.sum(), list(moved.values()))
    assert [(x.shape, x.dtype, x.device.type) for x in gradients] == [(x.shape, x.dtype, "meta") for x in leaves]


@pytest.mark.parametrize("name", [name for name in CALLS if name not in LATER])
def test_a_bad_call_raises_the_same(gallery_module: Callable[[str], ModuleType], name: str) -> None:
    changed, exception, message = CALLS[name]
    given = {"q": Q, "k": K, "v": V} | changed
    with pytest.raises(exception) as caught:
        gallery_module("causal").attention(**{key: meta(value) for key, value in given.items()})
    assert str(caught.value) == message


@pytest.mark.parametrize("name", INPUTS)
def test_a_bad_input_raises_the_same(gallery_module: Callable[[str], ModuleType], name: str) -> None:
    variant, own, exception, message = INPUTS[name]
    with pytest.raises(exception) as caught:
        gallery_module(variant).attention(meta(Q), meta(K), meta(V), **{key: meta(x) for key, x in own.items()})
    assert str(caught.value) == message


def test_a_plan_without_memory_is_refused_beside_tensors_that_have_some(
    gallery_module: Callable[[str], ModuleType],
) -> None:
    module = gallery_module("document")
    doc = torch.zeros(2, 12, dtype=torch.int32, device=Q.device)
    plan = module.plan(Q, K, V, doc=doc)
    elsewhere = replace(plan, counts=meta(plan.counts), tiles=meta(plan.tiles))
    with pytest.raises(ValueError, match=r"^plan is on meta; expected q's device, (cpu|cuda:0)$"):
        module.attention(Q, K, V, doc=doc, plan=elsewhere)


def test_tensors_of_two_devices_are_refused(gallery_module: Callable[[str], ModuleType]) -> None:
    with pytest.raises(ValueError, match=r"^k is on meta; expected q's device, (cpu|cuda:0)$"):
        gallery_module("causal").attention(Q, meta(K), V)
