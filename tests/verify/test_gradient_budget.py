"""The budget of gradients: an honest backward pass fits in it, one with a mistake does not, wherever the mistake is."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from flashgen.problems.calls import Call
from flashgen.runtime import eager_attention
from flashgen.verify.eager_gradients import Loss, eager_gradients
from flashgen.verify.gradient_budget import judge_gradients
from flashgen.verify.rounded import ExactSlopes

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CAP, REACH = 20.0, 16
LEARNED = ("rel", "sinks")
SHAPES = {"more keys": (4, 2, 90, 110), "more queries": (2, 2, 110, 70), "one query": (2, 1, 1, 80), "1": (1, 1, 1, 1)}


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, rel: Any, sinks: Any, **keywords: Any) -> Any:
    """Causal, a learned bias, a softcap, a sink: every kind of derivative."""

    def formula(score: Any, b: Any, h: Any, kv_h: Any, q: Any, k: Any) -> Any:
        biased = score + rel[h, (q - k).clamp(-REACH, REACH) + REACH].to(score.dtype)
        return CAP * torch.tanh(biased / CAP), k <= q

    return eager_attention(
        q, k, v, formula, bottom_right=True, sinks=sinks, **{"scale": None, "return_lse": False, **keywords}
    )


def a_case(
    dtype: torch.dtype, shape: str = "more keys", gain: float = 1.0, lse: bool = True, seed: int = 3
) -> tuple[Call, Loss]:
    heads, kv_heads, q_len, kv_len = SHAPES[shape]
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator)

    q, k, v = normal(2, heads, q_len, 40), normal(2, kv_heads, kv_len, 40), normal(2, kv_heads, kv_len, 24)
    inputs = {"rel": 0.5 * normal(heads, 2 * REACH + 1), "sinks": normal(heads)}
    loss = Loss(normal(2, heads, q_len, 24).to(dtype), normal(2, heads, q_len) if lse else None, LEARNED)
    return Call(gain * q.to(dtype), k.to(dtype), v.to(dtype), inputs), loss


def honest(call: Call, loss: Loss, wrong: str = "") -> dict[str, torch.Tensor]:
    """The backward pass as a kernel computes it: weights from lse, delta from the rounded output, factors of products
    rounded to the dtype. `wrong` names a mistake to make.
    """
    dtype, group = call.q.dtype, call.q.shape[1] // call.k.shape[1]
    rel, sinks = call.inputs["rel"], call.inputs["sinks"]
    q, d_out = call.q.float(), loss.d_out.float()
    k, v = (tensor.float().repeat_interleave(group, 1) for tensor in (call.k, call.v))
    out, lse = reference(q, k, v, rel=rel, sinks=sinks, return_lse=True)
    out = out.to(dtype)
    heads, q_len, kv_len = q.shape[1], q.shape[2], k.shape[2]
    scale = q.shape[-1] ** -0.5
    row = torch.arange(q_len)[:, None] + kv_len - q_len
    distance = (row - torch.arange(kv_len)).clamp(-REACH, REACH) + REACH
    capped = torch.tanh((q @ k.mT * scale + rel[:, distance]) / CAP)
    visible = torch.arange(kv_len) <= row + (wrong == "another mask")
    shift = lse.masked_fill(lse == -math.inf, 0)[..., None]
    weights = torch.where(visible & (lse != -math.inf)[..., None], (CAP * capped - shift).exp(), 0.0)
    delta = (d_out * out.float()).sum(-1)
    if wrong == "no delta":
        delta = delta * 0
    if wrong == "no delta in one row":
        delta[1, 0, 60] = 0
    if loss.d_lse is not None and wrong != "no gradient of lse":
        delta = delta - loss.d_lse
    d_score_out = weights * (d_out @ v.mT - delta[..., None])
    d_score = d_score_out if wrong == "no derivative" else d_score_out * (1 - capped * capped)
    rounded = d_score.to(dtype).float()
    d_q = rounded @ k * (1 if wrong == "no scale" else scale)
    d_k = (rounded.mT @ q * scale).unflatten(1, (-1, group)).sum(2)
    d_v = (weights.to(dtype).float().mT @ d_out).unflatten(1, (-1, group)).sum(2)
    if wrong == "one head of the group left out":
        d_k = (rounded.mT @ q * scale).unflatten(1, (-1, group))[:, :, 1:].sum(2)
    d_rel = torch.zeros_like(rel)
    places = (torch.arange(heads)[:, None, None] * rel.shape[1] + distance).flatten()
    reach = d_score_out if wrong == "no derivative of a learned input" else d_score
    d_rel.view(-1).index_add_(0, places, reach.sum(0).flatten())
    if wrong == "a learned input accumulated twice":
        d_rel = 2 * d_rel
    if wrong == "one element of a learned input left out":
        d_rel[1, 20] = 0
    d_sinks = -(delta * (sinks[:, None] - shift[..., 0]).exp()).masked_fill(lse == -math.inf, 0).sum((0, 2))
    if wrong == "delta of sinks with the other sign":
        d_sinks = -d_sinks
    gradients = {"q": d_q, "k": d_k, "v": d_v}
    return {name: g.to(dtype) for name, g in gradients.items()} | {"rel": d_rel, "sinks": d_sinks}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gain", [1.0, 30.0, 100.0])
@pytest.mark.parametrize("lse", [False, True])
def test_an_honest_kernel_passes(dtype: torch.dtype, shape: str, gain: float, lse: bool) -> None:
    for seed in range(2):
        call, loss = a_case(dtype, shape, gain, lse, seed)
        verdict = judge_gradients(honest(call, loss), call, loss, reference)
        assert verdict.ok, verdict


def test_float32_is_held_to_five_digits() -> None:
    call, loss = a_case(torch.float32)
    right = honest(call, loss)
    assert judge_gradients(right, call, loss, reference).ok
    for name in right:
        slightly = right | {name: right[name] * (1 + 2e-4)}
        assert not judge_gradients(slightly, call, loss, reference).ok, name


MISTAKES = [
    "another mask", "no delta", "no delta in one row", "no gradient of lse", "no derivative", "no scale",
    "one head of the group left out", "no derivative of a learned input", "a learned input accumulated twice",
    "one element of a learned input left out", "delta of sinks with the other sign",
]  # fmt: skip


@pytest.mark.parametrize("wrong", MISTAKES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mistake_is_found(dtype: torch.dtype, wrong: str) -> None:
    call, loss = a_case(dtype, gain=5.0)
    assert not judge_gradients(honest(call, loss, wrong), call, loss, reference).ok


# Each gradient meets each value and each dtype, and each value each dtype.
BAD = [
    (DTYPES[(place + turn) % 3], name, value)
    for place, name in enumerate(("q", "k", "v", *LEARNED))
    for turn, value in enumerate((math.nan, math.inf, 1e30))
]


@pytest.mark.parametrize(("dtype", "name", "value"), BAD)
def test_one_bad_element_is_found_and_named(dtype: torch.dtype, name: str, value: float) -> None:
    call, loss = a_case(dtype)
    found = honest(call, loss)
    found[name].view(-1)[1] = value
    verdict = judge_gradients(found, call, loss, reference)
    assert not verdict.ok and verdict.error > 1e29
    assert verdict.detail.startswith(f"d_{name} ")


def test_a_row_that_sees_nothing_has_a_gradient_of_exactly_zero() -> None:
    call, loss = a_case(torch.float32, "more queries")
    found = honest(call, loss)
    assert bool((found["q"][:, :, :39] == 0).all())
    found["q"][0, 1, 4, 2] = 1e-30
    verdict = judge_gradients(found, call, loss, reference)
    assert (verdict.ok, verdict.detail) == (False, "d_q at [batch, head, row] [0, 1, 4]")


def test_shape_and_dtype_are_part_of_the_answer() -> None:
    call, loss = a_case(torch.bfloat16)
    found = honest(call, loss)
    assert "d_k is torch.float32" in judge_gradients(found | {"k": found["k"].float()}, call, loss, reference).detail
    assert (
        "expected torch.float32 (4, 33)"
        in judge_gradients(found | {"rel": found["rel"][:, 1:]}, call, loss, reference).detail
    )


def test_nothing_passes_where_the_formula_has_no_gradient() -> None:
    def broken(q: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        return reference(q * (q * 0).sqrt(), *arguments, **keywords)

    call, loss = a_case(torch.float32)
    verdict = judge_gradients(honest(call, loss), call, loss, broken)
    assert not verdict.ok and "d_q of the formula itself is not finite" in verdict.detail


def test_eager_autograd_itself_passes() -> None:
    for dtype in DTYPES:
        call, loss = a_case(dtype)
        assert judge_gradients(eager_gradients(call, loss, reference, None, dtype), call, loss, reference).ok


def test_a_derivative_that_float64_rounds_to_nothing_may_keep_digits() -> None:
    """tanh of scores near 500 / 20 has a slope of 8e-22, and 1 - tanh^2 is 0 there."""
    call, loss = a_case(torch.float32)
    call.inputs["rel"].add_(500.0)
    found = eager_gradients(call, loss, reference, None, torch.float32)
    assert bool((found["rel"] == 0).all())
    assert judge_gradients(found, call, loss, reference).ok
    with ExactSlopes():
        found = eager_gradients(call, loss, reference, None, torch.float32)
    assert bool((found["rel"] != 0).any())
    assert judge_gradients(found, call, loss, reference).ok
    found["rel"][1, 3] = 1e-6
    assert not judge_gradients(found, call, loss, reference).ok
