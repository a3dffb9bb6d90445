"""The largest logit of each row, as return_max gives it: beside what else is asked for, and under what torch wraps."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from attending import BACKWARD, CONFIG, DEVICE, VARIANTS, attend, drawn, trainable
from test_opcheck import Watch

from flashgen.codegen import generate, load_module
from flashgen.codegen.export import export_module
from flashgen.problems.calls import Call
from flashgen.spec import load

Modules = Callable[[str], ModuleType]
# Logits that are dot products, less a term of the row, in natural units, with a sink and with a schedule.
NAMES = ["causal", "alibi", "relative_bias", "sink", "document"]


def wanted(module: ModuleType, call: Call, **keywords: Any) -> torch.Tensor:
    """By the eager formula in float64."""
    q, k, v = call.q.detach().double(), call.k.detach().double(), call.v.detach().double()
    largest: torch.Tensor = module.reference(q, k, v, **call.keywords, return_max=True, **keywords)[1]
    assert largest.dtype == torch.float64
    return largest


def near(found: torch.Tensor, right: torch.Tensor) -> None:
    assert (found.dtype, found.shape, found.requires_grad) == (torch.float32, right.shape, False)
    torch.testing.assert_close(found.double(), right, rtol=1e-6, atol=4e-6)


@pytest.mark.parametrize("name", NAMES)
def test_results_come_in_the_order_out_lse_max(gallery_module: Modules, name: str) -> None:
    module, call = gallery_module(name), drawn(name)
    given = {**call.keywords, "config": CONFIG}
    out, lse = module.attention(call.q, call.k, call.v, return_lse=True, **given)
    three = module.attention(call.q, call.k, call.v, return_lse=True, return_max=True, **given)
    two = module.attention(call.q, call.k, call.v, return_max=True, **given)
    assert all(map(torch.equal, three, (out, lse, two[1])))
    assert torch.equal(two[0], out)
    near(two[1], wanted(module, call))
    eager = module.reference(call.q, call.k, call.v, **call.keywords, return_lse=True, return_max=True)
    assert [each.shape for each in eager] == [each.shape for each in three]


@pytest.mark.parametrize("scale", [0.0, -0.5, 1e-30, 1e-44])
@pytest.mark.parametrize("name", ["causal", "alibi", "softcap"])
def test_any_scale(gallery_module: Modules, name: str, scale: float) -> None:
    module, call = gallery_module(name), drawn(name)
    found = module.attention(call.q, call.k, call.v, **call.keywords, scale=scale, return_max=True, config=CONFIG)[1]
    near(found, wanted(module, call, scale=scale))


def test_rows_without_a_visible_key(gallery_module: Modules) -> None:
    module = gallery_module("causal")
    call = drawn("causal", q_len=27, kv_len=20)
    found = module.attention(call.q, call.k, call.v, return_max=True, config=CONFIG)[1]
    assert bool((found[:, :, :7] == -math.inf).all()) and bool(found[:, :, 7:].isfinite().all())
    for attention in (module.attention, module.reference):
        out, largest = attention(call.q, call.k[:, :, :0], call.v[:, :, :0], return_max=True)
        assert not bool(out.any()) and torch.equal(largest, torch.full((2, 4, 27), -math.inf, device=DEVICE))


@pytest.mark.parametrize("odd", [math.nan, math.inf])
@pytest.mark.parametrize(("q_len", "kv_len"), [(20, 27), (3, 600)])
def test_a_score_that_is_not_finite_is_seen(gallery_module: Modules, q_len: int, kv_len: int, odd: float) -> None:
    module, call = gallery_module("relative_bias"), drawn("relative_bias", q_len, kv_len)
    [table] = call.inputs.values()
    table[1, table.shape[1] // 2] = odd  # of the keys that are as far as their queries
    config = CONFIG if q_len > 16 else None
    found = module.attention(call.q, call.k, call.v, **call.keywords, return_max=True, config=config)[1]
    right = wanted(module, call)
    assert not right[:, 1].isfinite().all() and right[:, 0].isfinite().all()
    torch.testing.assert_close(found.double(), right, rtol=1e-6, atol=4e-6, equal_nan=True)


@pytest.mark.parametrize("huge", [-1e8, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("sink", [{}, {"sink": "learned"}], ids=["without", "with a sink"])
def test_additive_masks_as_models_make_them(tmp_path: Path, sink: dict[str, str], huge: float) -> None:
    spec = {
        "name": "padded",
        "inputs": {"pad": {"shape": ["batch", "kv_len"], "dtype": "float32"}},
        "score": "score + pad[b, k]",
        **sink,
    }
    module = load_module(generate(load(spec), tmp_path))
    torch.manual_seed(0)
    for q_len, kv_len in ((20, 27), (3, 600)):
        q, k = (torch.randn(2, 2, length, 16, device=DEVICE) for length in (q_len, kv_len))
        pad = torch.zeros(2, kv_len, device=DEVICE)
        pad[0, 5:], pad[1, :] = huge, huge
        own = {"pad": pad} | ({"sinks": torch.full((2,), 40.0, device=DEVICE)} if sink else {})
        config = CONFIG if q_len > 16 else None
        found = module.attention(q, k, k, **own, return_max=True, config=config)[1]
        right = module.reference(q, k, k, **own, return_max=True)[1]
        near(found, right.double())


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_a_call_without_it(gallery_module: Modules, name: str) -> None:
    module = gallery_module(name)
    call, leaves = trainable(name, drawn(name))
    out, lse = attend(module, call)
    plain = torch.autograd.grad(out.sin().sum() + lse.sum(), leaves)
    out, lse, largest = attend(module, call, return_max=True)
    assert not largest.requires_grad
    for one, other in zip(torch.autograd.grad(out.sin().sum() + lse.sum(), leaves), plain, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["alibi", "relative_bias", "document"])
def test_torch_compile_takes_it_whole(gallery_module: Modules, name: str) -> None:
    torch.compiler.reset()
    module = gallery_module(name)
    call, leaves = trainable(name, drawn(name))
    layer = lambda: attend(module, call, return_max=True)  # noqa: E731
    found, plain = torch.compile(layer, fullgraph=True, backend="aot_eager")(), layer()
    assert all(map(torch.equal, found, plain))
    assert not found[2].requires_grad
    mine, right = (torch.autograd.grad(out.sum(), leaves) for out in (found[0], plain[0]))
    for one, other in zip(mine, right, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["causal", "relative_bias"])
def test_torch_finds_nothing_wrong_with_the_operator(gallery_module: Modules, name: str) -> None:
    call, _ = trainable(name, drawn(name, 10, 13))
    with Watch() as watch:
        attend(gallery_module(name), call, return_max=True)
    [(forward, taken)] = watch.calls
    torch.library.opcheck(forward, taken)


def test_transforms_of_torch_func_return_it(gallery_module: Modules) -> None:
    module = gallery_module("causal")
    q = torch.randn(3, 1, 2, 20, 16, device=DEVICE)
    layer = lambda x: module.attention(x, x, x, return_max=True, config=CONFIG, backward_config=BACKWARD)  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it loops
        _, largest = torch.func.vmap(layer)(q)
    assert torch.equal(largest, torch.stack([layer(x)[1] for x in q]))
    gradient, same = torch.func.grad(lambda x: (layer(x)[0].sum(), layer(x)[1]), has_aux=True)(q[0])
    assert gradient.shape == q[0].shape
    torch.testing.assert_close(same, largest[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_tensors_without_memory(gallery_module: Modules, name: str) -> None:
    call = drawn(name)
    q, k, v, *inputs = (tensor.to("meta") for tensor in (call.q, call.k, call.v, *call.inputs.values()))
    given = {**call.keywords, **dict(zip(call.inputs, inputs, strict=True))}
    out, largest = gallery_module(name).attention(q, k, v, **given, return_max=True)
    assert (out.shape, largest.shape, largest.dtype) == ((2, 4, 20, 24), (2, 4, 20), torch.float32)


def test_a_module_in_one_file_returns_it(tmp_path: Path) -> None:
    call = drawn("sink")
    module = load_module(export_module(VARIANTS["sink"], (), tmp_path / "alone.py").path)
    near(module.attention(call.q, call.k, call.v, **call.keywords, return_max=True, config=CONFIG)[1],
         wanted(module, call))  # fmt: skip
