"""A mod's first call is as any other, whatever its caller is in the midst of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from flashgen.flex import flex_attention, kernels, to_spec

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
table, learned = (torch.randn(2, 20, generator=torch.Generator().manual_seed(1)).to(DEVICE) for _ in range(2))
learned.requires_grad_()

MODS: dict[str, Callable[..., torch.Tensor]] = {
    "read": lambda score, b, h, q, k: score + table[h, k],
    "turned": lambda score, b, h, q, k: score + table.t()[k, h],
    "derived": lambda score, b, h, q, k: score + table.cumsum(-1)[h, k],
    "learned": lambda score, b, h, q, k: score + learned[h, k],
    "derived and learned": lambda score, b, h, q, k: score + learned.softmax(-1)[h, k],
    "made": lambda score, b, h, q, k: score * torch.tensor([1.0, 2.0])[h],
}


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, 20, 16, generator=generator).to(DEVICE).requires_grad_() for _ in range(3)]


def in_inference_mode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mod: Any) -> None:
    with torch.inference_mode():
        flex_attention(q, k, v, mod)
        to_spec(mod)


def in_a_checkpoint(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mod: Any) -> None:
    checkpoint(lambda *qkv: flex_attention(*qkv, mod), q, k, v, use_reentrant=False).sum().backward()


def in_a_transform(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mod: Any) -> None:
    torch.func.grad(lambda q: flex_attention(q, k.detach(), v.detach(), mod).sum())(q.detach())


def in_a_checkpoint_that_chooses(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mod: Any) -> None:
    """Which keeps all that operators give, and wants as many of them again."""
    contexts = functools.partial(create_selective_checkpoint_contexts, lambda *_, **__: CheckpointPolicy.MUST_SAVE)
    out = checkpoint(lambda *qkv: flex_attention(*qkv, mod), q, k, v, use_reentrant=False, context_fn=contexts)
    out.sum().backward()


def of_fake_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mod: Any) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        out = flex_attention(*map(mode.from_tensor, (q, k, v)), mod)
    assert isinstance(out, FakeTensor) and out.shape == q.shape


WAYS = [in_inference_mode, in_a_checkpoint, in_a_transform, in_a_checkpoint_that_chooses, of_fake_tensors]


@pytest.mark.parametrize("first", WAYS)
@pytest.mark.parametrize("name", MODS)
def test_where_a_mod_is_called_first_makes_no_difference(name: str, first: Callable[..., None]) -> None:
    def outside() -> tuple[torch.Tensor, ...]:
        qkv = inputs()
        out = flex_attention(*qkv, MODS[name])
        wanted = [*qkv, learned] if "learned" in name else qkv
        return out, *torch.autograd.grad(out.sum(), wanted)

    expected = outside()
    kernels.forget()
    first(*inputs(), MODS[name])
    assert all(map(torch.equal, outside(), expected))


@pytest.mark.parametrize("name", ["read", "turned", "derived", "made"])
def test_tensors_without_data_give_the_shape(name: str) -> None:
    bias = torch.randn(2, 20, device="meta")
    mods: dict[str, Callable[..., torch.Tensor]] = {
        "read": lambda score, b, h, q, k: score + bias[h, k],
        "turned": lambda score, b, h, q, k: score + bias.t()[k, h],
        "derived": lambda score, b, h, q, k: score + bias.cumsum(-1)[h, k],
        "made": MODS["made"],
    }
    out = flex_attention(*(each.to("meta") for each in inputs()), mods[name])
    assert out.is_meta and out.shape == (1, 2, 20, 16)


def test_a_mod_may_capture_fake_tensors_and_what_is_made_of_them() -> None:
    with FakeTensorMode():
        bias, q = torch.randn(2, 20), torch.randn(1, 2, 20, 16)
        out = flex_attention(q, q, q, lambda score, b, h, i, j: score + bias.cumsum(-1)[h, j])
    assert isinstance(out, FakeTensor) and out.shape == q.shape
