"""The budget: an honest implementation fits in it, a slightly wrong one does not, however few rows it gets wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from flashgen.problems.calls import Call
from flashgen.verify.budget import Reference, judge

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def visible(q_len: int, kv_len: int) -> torch.Tensor:
    """Causal, bottom right."""
    return torch.arange(kv_len) <= torch.arange(q_len)[:, None] + kv_len - q_len


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None = None, return_lse: bool = False
) -> Any:
    """Eager causal attention; scores in float32, or float64 when given that."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    scores = q.to(wide) @ k.to(wide).transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
    scores = scores.masked_fill(~visible(q.shape[2], k.shape[2]), -math.inf)
    lse = scores.logsumexp(-1)
    weights = torch.where(lse[..., None] == -math.inf, 0.0, (scores - lse[..., None]).exp())
    out = (weights @ v.to(wide)).to(q.dtype)
    return (out, lse) if return_lse else out


def honest(call: Call, step: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """An online softmax over tiles of keys, as a kernel computes it: weights rounded to the dtype, log2 domain."""
    q, k, v = (t.float() for t in (call.q, call.k, call.v))
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 * math.log2(math.e))
    scores = scores.masked_fill(~visible(q.shape[2], k.shape[2]), -math.inf)
    top = torch.full(q.shape[:3], -math.inf)
    total, acc = torch.zeros(q.shape[:3]), torch.zeros(*q.shape[:3], v.shape[-1])
    for start in range(0, k.shape[2], step):
        tile = scores[..., start : start + step]
        new = torch.maximum(top, tile.amax(-1))
        shift = torch.where(new == -math.inf, 0.0, new)
        alpha, weights = torch.exp2(top - shift), torch.exp2(tile - shift[..., None])
        total = total * alpha + weights.sum(-1)
        acc = acc * alpha[..., None] + weights.to(call.q.dtype).float() @ v[..., start : start + step, :]
        top = new
    out = torch.where(total[..., None] == 0, 0.0, acc / total[..., None])
    return out.to(call.q.dtype), (top + total.log2()) * math.log(2)


def a_call(dtype: torch.dtype, q_len: int = 200, kv_len: int = 230, gain: float = 1.0) -> Call:
    generator = torch.Generator().manual_seed(7)
    q, k, v = (torch.randn(2, 2, n, 64, generator=generator).to(dtype) for n in (q_len, kv_len, kv_len))
    return Call(q * gain, k, v)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("q_len", "kv_len"), [(200, 230), (230, 200), (1, 1), (1, 300), (300, 1)])
@pytest.mark.parametrize("gain", [1.0, 100.0])
def test_an_honest_kernel_passes(dtype: torch.dtype, q_len: int, kv_len: int, gain: float) -> None:
    call = a_call(dtype, q_len, kv_len, gain)
    verdict = judge(*honest(call), call, reference)
    assert verdict.ok, verdict
    assert verdict.budget < 0.1


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_bad_row_is_found(dtype: torch.dtype) -> None:
    call = a_call(dtype)
    out, lse = honest(call)
    # The key right after the diagonal counted as well, in one row of 800.
    more = Call(call.q[1:, 1:, 150:151], call.k[1:, 1:, :182], call.v[1:, 1:, :182])
    wrong_out, wrong_lse = honest(more)
    out[1, 1, 150], lse[1, 1, 150] = wrong_out[0, 0, 0], wrong_lse[0, 0, 0]
    verdict = judge(out, lse, call, reference)
    assert not verdict.ok and verdict.detail.endswith("at [batch, head, row] [1, 1, 150]")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_one_bad_element_is_found(dtype: torch.dtype, value: float) -> None:
    call = a_call(dtype)
    out, lse = honest(call)
    out[0, 1, 3, 5] = value
    assert judge(out, lse, call, reference).detail == "out at [batch, head, row] [0, 1, 3]"
    out, lse = honest(call)
    lse[0, 1, 3] = value
    verdict = judge(out, lse, call, reference)
    assert not verdict.ok and verdict.detail == "lse at [batch, head, row] [0, 1, 3]"


def test_products_in_tensor_float_32_are_found() -> None:
    call = a_call(torch.float32)
    # TF32 keeps 10 bits of the fraction.
    q = (call.q.view(torch.int32) & ~0x1FFF).view(torch.float32)
    k = (call.k.view(torch.int32) & ~0x1FFF).view(torch.float32)
    assert not judge(*honest(replace(call, q=q, k=k)), call, reference).ok


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_score_scale_rounded_to_16_bits_is_found(dtype: torch.dtype) -> None:
    call = a_call(dtype, gain=30.0)
    scaled = (call.q.float() * math.log2(math.e)).bfloat16().float() / math.log2(math.e)
    wrong = honest(replace(call, q=scaled))
    assert not judge(wrong[0].to(dtype), wrong[1], call, reference).ok


@pytest.mark.parametrize("kept", [1.0, 0.1])
def test_small_weights_may_be_all_that_dropout_keeps(kept: float) -> None:
    """Those below 2^-14 are rounded to multiples of 2^-24, and what they add up grows with what is dropped."""
    call = a_call(torch.float16, 1, 2, gain=0.0)
    call.k[:], call.k[:, :, 0], call.q[:] = 0, -10, 64**-0.5

    def dropped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **keywords: Any) -> Any:
        out, lse = reference(q, k, v * torch.tensor([1.0, 0.0]).to(v.dtype)[:, None], return_lse=True)
        return (out / kept, lse) if keywords.pop("return_lse", False) else out / kept

    _, lse = dropped(call.q, call.k, call.v, return_lse=True)
    weight = (call.q.double() @ call.k.double().transpose(-1, -2) * 64**-0.5 - lse[..., None]).exp()[..., :1]
    assert float(weight.max()) < 2**-14
    off = ((weight + 0.4 * 2**-24) * call.v[:, :, :1].double() / kept).to(torch.float16)
    assert judge(off, lse, call, dropped, kept=kept).ok
    far = ((weight + 4 * 2**-24) * call.v[:, :, :1].double() / kept).to(torch.float16)
    assert not judge(far, lse, call, dropped, kept=kept).ok


def test_lse_in_log2_is_found() -> None:
    call = a_call(torch.bfloat16)
    out, lse = honest(call)
    assert not judge(out, lse / math.log(2), call, reference).ok


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_error_of_lse_that_a_slope_alone_would_excuse_is_found(dtype: torch.dtype) -> None:
    call = a_call(dtype)
    out, lse = honest(call)
    off = lse + 5e-5
    assert not judge(out, off, call, reference).ok
    assert judge(out, off, call, reference, counted_apart=256.0).ok


def test_few_rows_may_lose_what_others_would() -> None:
    """Terms that cancel may round to the right sum by luck, as those of the eager formula do here."""

    def reference_beside(term: float) -> Reference:
        def beside(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **keywords: Any) -> Any:
            both = keywords.pop("return_lse", False)
            out, lse = reference(q, k, v, return_lse=True, **keywords)
            lse = (lse + term) - term if q.dtype == torch.float64 else lse
            return (out, lse) if both else out

        return beside

    call = a_call(torch.float32, 1, 300)
    out, lse = honest(call)
    assert not judge(out, lse + 1e-3, call, reference).ok
    assert judge(out, lse + 1e-3, call, reference_beside(20000.0)).ok
    assert not judge(out, lse + 1e-3, call, reference_beside(20.0)).ok


def test_only_the_rows_in_question_are_held_to_it() -> None:
    call = a_call(torch.bfloat16)
    out, lse = honest(call)
    lse[1, 1, 150] += 1
    others = torch.ones_like(lse, dtype=torch.bool)
    others[1, 1, 150] = False
    assert not judge(out, lse, call, reference).ok
    assert judge(out, lse, call, reference, rows=others).ok
    assert not judge(out, lse, call, reference, rows=~others).ok


@pytest.mark.parametrize("what", ["out", "lse"])
def test_an_empty_row_must_be_exact(what: str) -> None:
    call = a_call(torch.bfloat16, q_len=230, kv_len=200)
    out, lse = honest(call)
    if what == "out":
        out[0, 0, 4, 0] = 1e-30
    else:
        lse[0, 0, 4] = -1e30
    verdict = judge(out, lse, call, reference)
    assert not verdict.ok and "no visible key" in verdict.detail


def test_shape_and_dtype_are_part_of_the_answer() -> None:
    call = a_call(torch.bfloat16)
    out, lse = honest(call)
    assert "out is torch.float32" in judge(out.float(), lse, call, reference).detail
    assert "lse is torch.bfloat16" in judge(out, lse.bfloat16(), call, reference).detail
    assert "expected torch.bfloat16 (2, 2, 200, 64)" in judge(out[:, :1], lse, call, reference).detail


def test_where_nothing_is_lost_the_worst_row_is_not_an_empty_one() -> None:
    """Minus infinity less minus infinity is no error of theirs."""
    call = a_call(torch.float32, q_len=3, kv_len=1, gain=0.0)
    verdict = judge(*(each.float() for each in reference(call.q, call.k, call.v, return_lse=True)), call, reference)
    assert verdict.ok
    assert verdict.error == 0


def test_nothing_passes_where_the_formula_has_no_answer() -> None:
    def broken(q: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        out, lse = reference(q, *arguments, **{**keywords, "return_lse": True})
        out[0, 0, 9] = math.nan
        return (out, lse) if keywords.get("return_lse") else out

    call = a_call(torch.bfloat16)
    verdict = judge(*honest(call), call, broken)
    assert not verdict.ok and "formula itself is not finite at [batch, head, row] [0, 0, 9]" in verdict.detail


@pytest.mark.parametrize("score", [1.2 * torch.finfo(torch.float32).min, -200.0])
def test_nothing_is_said_of_rows_that_float32_cannot_hold(score: float) -> None:
    """Of a score beyond its largest number, nor of one that is minus infinity on the way, as log(sigmoid(x)) may be."""

    def beyond(q: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        out, lse = reference(q, *arguments, **{**keywords, "return_lse": True})
        lse[0, 1, 7] = score if q.dtype == torch.float64 else -math.inf
        return (out, lse) if keywords.get("return_lse") else out

    call = a_call(torch.bfloat16)
    verdict = judge(*honest(call), call, beyond)
    assert not verdict.ok
    assert verdict.detail.startswith("the formula itself is not finite at [batch, head, row] [0, 1, 7], in float32")
