"""How far a kernel may stray from its formula, derived from the data and the formats, and whether it does.

The truth is the eager formula in float64 on the upcast inputs. Of a row (one query of one head) let

    A = max over d of sum_j p_j |v_jd|      what the row adds up, in magnitude
    S = |scale| max over j of sum_d |q_d k_jd| + |lse|      what its scores add up, in magnitude, and where they end

and let u be the unit roundoff of the dtype of q, u32 that of float32. Relative to A, a row's error may be

    2 E + 2 u + u32 (4 + 4 steps + 4 S)

- E is what the eager formula loses in float32, in which a kernel computes its scores whatever the dtype: the worst
  row, relative to its own A. It stands for every rounding inside the expressions, which amplify as they like. Pooling
  over rows makes it steady (a row of one key loses nothing); the factor 2 is for another order of operations.
- 2 u is what the kernel's own dtype adds: the weights are rounded to it before the product with v, and the output is
  rounded once. Either is at most u A. Triton's interpreter cuts bfloat16 off instead of rounding it, so that on the
  CPU its u is twice as large.
- u32 terms: exp2 in hardware is good to 2 units in the last place (4 u32); each online step rescales and adds both
  the sum of weights and the accumulator (4 u32; at least 16 keys a step); the score is multiplied by a rounded
  constant, rounded, and the maximum subtracted (4 u32 S: an error of a score is a relative error of its weight, and
  the scores that weigh anything end near lse).

float16 also underflows: a weight below 2^-14 carries an absolute error of up to 2^-25, which kv_len of them times the
largest |v| can add up, and an output carries one too. The other dtypes have float32's range: there a weight below
2^-126, as a sink may leave it, may be off by as much. With dropout all weights that count may be such small ones; what
they add up is divided by the share of weights that is kept, and so is what they are off by.

lse is compared absolutely: 2 E' + u32 (4 + 2 steps + 4 (S + T)); so is the largest logit of a row, with what eager
loses of it and itself in the place of lse. T, which the caller knows, is what a bias that is
linear in the distance comes to over the rows of a tile, from the first of which kernels count it (see `slopes`); 0
where there is none. E' is what eager loses in float32; for 16-bit inputs with the fast forms of functions that a kernel
may then take, whose absolute error, small beside the rounding of such inputs, is large beside a small score.

Of few rows an eager formula may lose little by luck, where terms cancel that are large beside the score. What does not
fit is held against E and E' of the formula in which every operation is rounded up or down as it comes, the worst of
some (see `random_roundings`).

A row with no visible key must be exactly 0, with lse and its largest logit exactly minus infinity. NaN never passes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from flashgen.problems.calls import Call, drawn
from flashgen.verify.rounded import FastFunctions, random_roundings

U32 = torch.finfo(torch.float32).eps / 2
KEYS_PER_STEP = 16


class Reference(Protocol):
    """A generated module's `reference`."""

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, /, **keywords: Any) -> Any: ...


@dataclass(frozen=True)
class Verdict:
    """The worst row: its error and what it may be, both relative to A for out and absolute for lse and max."""

    error: float
    budget: float
    ok: bool
    detail: str

    @property
    def is_final(self) -> bool:
        """Whether no larger budget changes it: what passes would pass then too, and what is infinite never does."""
        return self.ok or math.isinf(self.error)


@dataclass(frozen=True)
class _Truth:
    out: torch.Tensor
    of_rows: dict[str, torch.Tensor]  # lse, and max where it is judged, [batch, heads, q_len]
    magnitude: torch.Tensor  # A, [batch, heads, q_len]
    empty: torch.Tensor  # rows with no visible key


def judge(
    out: torch.Tensor, lse: torch.Tensor, call: Call, reference: Reference, scale: float | None = None,
    counted_apart: torch.Tensor | float = 0.0, rows: torch.Tensor | None = None,
    largest: torch.Tensor | None = None, kept: float = 1.0,
) -> Verdict:  # fmt: skip
    """Compare a kernel's out and lse, and what it says are the `largest` logits, with the formula on the same call.

    `counted_apart` is T. `rows`, bool [batch, heads, q_len], are those that are held to the budget, and that it is
    derived from; all where it is None. `kept` is the share of weights that dropout keeps.
    """
    of_rows = {"lse": lse} | ({} if largest is None else {"max": largest})
    malformed = _malformed(out, of_rows, call)
    if malformed:
        return Verdict(math.inf, 0.0, False, malformed)
    truth = _truth(call, reference, scale, largest is not None)
    in_float32 = _eager(call, reference, scale, torch.float32, largest is not None)
    nonsense = _nonsense(truth, in_float32[1], call)
    if nonsense:
        return Verdict(math.inf, 0.0, False, nonsense)
    full = ~truth.empty if rows is None else rows & ~truth.empty
    if bool((out[truth.empty] != 0).any()) or any(
        bool((each[truth.empty] != -math.inf).any()) for each in of_rows.values()
    ):
        return Verdict(math.inf, 0.0, False, f"a row with no visible key is not 0 with {' and '.join(of_rows)} -inf")
    if not bool(full.any()):
        return Verdict(0.0, 0.0, True, "there is no row to compare")
    steps = math.ceil(call.k.shape[2] / KEYS_PER_STEP)
    products = score_magnitude(call, scale)
    scores = {name: products + each.abs().where(full, 0.0) for name, each in truth.of_rows.items()}
    relative = (
        2 * roundoff(call.q) + U32 * (4 + 4 * steps + 4 * scores["lse"]) + _underflow(call, kept) / truth.magnitude
    )

    def beside(lost: _Lost) -> Verdict:
        verdicts = [_worst("out", _row_error(out, truth.out) / truth.magnitude, relative + 2 * lost.out, full)]
        for name, true in truth.of_rows.items():
            absolute = U32 * (4 + 2 * steps + 4 * (scores[name] + counted_apart)) + 2 * lost.of_rows[name]
            verdicts.append(_worst(name, (of_rows[name].double() - true).abs(), absolute, full))
        return max(verdicts, key=lambda verdict: (not verdict.ok, verdict.error / verdict.budget))

    eager = _lost(in_float32, truth, full)
    verdict = beside(eager)
    for rounding in random_roundings(call.q.dtype):
        if verdict.is_final:
            break
        with rounding:
            found = _eager(call, reference, scale, torch.float64, largest is not None)
        eager = eager.or_more(_lost(found, truth, full))
        verdict = beside(eager)
    return verdict


@dataclass(frozen=True)
class _Lost:
    """What an eager evaluation loses in its worst row: E, and E' of each that a row has one of."""

    out: torch.Tensor
    of_rows: dict[str, torch.Tensor]

    def or_more(self, other: _Lost) -> _Lost:
        of_rows = {name: torch.maximum(lost, other.of_rows[name]) for name, lost in self.of_rows.items()}
        return _Lost(torch.maximum(self.out, other.out), of_rows)


def _lost(found: tuple[torch.Tensor, ...], truth: _Truth, rows: torch.Tensor) -> _Lost:
    out, *others = found
    of_rows = {
        name: _pooled((each.double() - true).abs(), rows)
        for (name, true), each in zip(truth.of_rows.items(), others, strict=True)
    }
    return _Lost(_pooled(_row_error(out, truth.out) / truth.magnitude, rows), of_rows)


def _eager(
    call: Call, reference: Reference, scale: float | None, dtype: torch.dtype, largest: bool
) -> tuple[torch.Tensor, ...]:
    """out, and lse and the largest logits with the fast forms of functions for 16-bit inputs."""
    q, k, v = call.q.to(dtype), call.k.to(dtype), call.v.to(dtype)
    asked = _asked(largest)
    out, *of_rows = reference(q, k, v, **call.keywords, scale=scale, **asked)
    if call.q.dtype != torch.float32:
        with FastFunctions():
            of_rows = reference(q, k, v, **call.keywords, scale=scale, **asked)[1:]
    return out, *of_rows


def _asked(largest: bool) -> dict[str, bool]:
    return {"return_lse": True, "return_max": True} if largest else {"return_lse": True}


def _truth(call: Call, reference: Reference, scale: float | None, largest: bool) -> _Truth:
    q, k, v = call.q.double(), call.k.double(), call.v.double()
    out, *others = reference(q, k, v, **call.keywords, scale=scale, **_asked(largest))
    of_rows = {name: each.double() for name, each in zip(("lse", "max"), others, strict=False)}
    magnitude = reference(q, k, v.abs(), **call.keywords, scale=scale).amax(-1)
    # A row whose every value is 0 has nothing to be relative to; its output must then be exact.
    smallest = torch.finfo(torch.float64).tiny
    return _Truth(out, of_rows, magnitude.clamp_min(smallest), of_rows["lse"] == -math.inf)


def _malformed(out: torch.Tensor, of_rows: dict[str, torch.Tensor], call: Call) -> str | None:
    shape = (*call.q.shape[:3], call.v.shape[3])
    if tuple(out.shape) != shape or out.dtype != call.q.dtype:
        return f"out is {out.dtype} {tuple(out.shape)}; expected {call.q.dtype} {shape}"
    for name, each in of_rows.items():
        if tuple(each.shape) != shape[:3] or each.dtype != torch.float32:
            return f"{name} is {each.dtype} {tuple(each.shape)}; expected torch.float32 {shape[:3]}"
    return None


def _nonsense(truth: _Truth, lse_in_float32: torch.Tensor, call: Call) -> str | None:
    """The formula itself may have no answer, or none that float32 holds, in which a kernel computes: then nothing can
    be said of the kernel, and nothing passes."""
    lse = truth.of_rows["lse"]
    there = truth.empty | truth.out.isfinite().all(-1) & lse.isfinite()
    held = truth.empty | lse.float().isfinite() & (lse_in_float32 != -math.inf)
    for rows, precision in ((there, "float64"), (held, "float32")):
        if not bool(rows.all()):
            row = (~rows).nonzero()[0].tolist()
            return f"the formula itself is not finite at [batch, head, row] {row}, in {precision}{what_was_drawn(call)}"
    return None


def what_was_drawn(call: Call) -> str:
    """The end of a sentence on a formula that is not finite: with what, and what a spec can say."""
    spans = drawn(call)
    return f", with {spans}; an input's key `range: [low, high]` says what to draw" if spans else ""


def _row_error(out: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    return (out.double() - truth).abs().amax(-1)


def score_magnitude(call: Call, scale: float | None) -> torch.Tensor:
    """The first part of S for each row: |scale| max over j of sum_d |q_d k_jd|, [batch, heads, q_len]."""
    group = call.q.shape[1] // call.k.shape[1]
    q = call.q.double().abs()
    k = call.k.double().abs().repeat_interleave(group, dim=1)
    factor = 1 / math.sqrt(call.q.shape[3]) if scale is None else abs(scale)
    return (q @ k.transpose(-1, -2)).amax(-1) * factor


def roundoff(q: torch.Tensor) -> float:
    """u, of the dtype and where it is computed."""
    return torch.finfo(q.dtype).eps / (1 if cut_off(q) else 2)


def cut_off(q: torch.Tensor) -> bool:
    """Whether a kernel on these tensors cuts off what does not fit its dtype, instead of rounding it."""
    return q.dtype == torch.bfloat16 and q.device.type == "cpu"


def as_stored(found: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """A float64 result as a kernel on these tensors stores it, in the dtype of q."""
    if not cut_off(q):
        return found.to(q.dtype).to(found.dtype)
    # bfloat16 is the first half of float32: without the rest nothing is larger than it was.
    return (found.to(torch.float32).view(torch.int32) & -(2**16)).view(torch.float32).to(found.dtype)


def _underflow(call: Call, kept: float) -> float:
    least = 2.0**-25 if call.q.dtype == torch.float16 else 2.0**-126
    return least * (call.k.shape[2] * float(call.v.abs().max()) / kept + 1)


def _worst(what: str, error: torch.Tensor, budget: torch.Tensor, rows: torch.Tensor) -> Verdict:
    share, error = torch.where(rows, error / budget, 0.0), torch.where(rows, error, 0.0)
    return worst_of(f"{what} at [batch, head, row]", error, budget, share)


def worst_of(where: str, error: torch.Tensor, budget: torch.Tensor, share: torch.Tensor) -> Verdict:
    """The verdict on the place that takes the largest share of its budget; all three tensors are of one shape."""
    # NaN compares false with everything: count it as the worst there is.
    share = torch.where(share.isnan(), math.inf, share)
    at = int(share.argmax())
    place = [int(n) for n in torch.unravel_index(torch.tensor(at), share.shape)]
    worst, allowed = float(error.flatten()[at]), float(budget.flatten()[at])
    ok = bool(share.flatten()[at] <= 1)
    return Verdict(worst if not math.isnan(worst) else math.inf, allowed, ok, f"{where} {place}")


def _pooled(losses: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """What the eager formula loses in its worst row; a row where it overflows says nothing of what is lost."""
    return torch.where(rows & losses.isfinite(), losses, 0.0).max()
