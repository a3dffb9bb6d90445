"""How far gradients may stray from those of the formula, derived from the data and the formats, and whether they do.

The truth is autograd through the eager formula in float64 on the upcast inputs, with slopes that keep their digits
where tanh is all but 1, for the same gradients d_out and d_lse of a loss. With P the weights, dP = d_out v^T and
dS = P (dP - rowsum(P dP) + d_lse) the gradient of the scores, let

    w_i = sum_j P_ij |dP_ij| + |d_out_i * out_i| + |d_lse_i|      what dS adds up before dP cancels with its mean
    N = |truth| + |gradient of sum_i w_i lse_i|      for q, k and learned inputs: what a gradient is if nothing cancels
    N = gradient under |d_out|      for v

With dropout a row may keep next to nothing, and have a w_i next to 0. There w_i has more where a kernel rounds d_out
anew (see `uncancelled`).

An element of a learned input may be read at several places, as a query's and as a key's, with opposite signs: its N is
the sum over the places of |gradient|, and the largest of some in which each w_i has a sign of its own.

Let u be the unit roundoff of the kernel's dtype, u32 that of float32. Two things are asked of each gradient:

- Row by row (one query, one key; of a learned input one element), relative to the row's N: at most 2 E + 4 u + f.
  E is what eager autograd loses in float32, in which a kernel computes whatever the dtype, for 16-bit inputs with the
  fast forms of functions: the worst row, which stands for every rounding inside the expressions. 4 u: the weights, dS,
  out (in rowsum(P dP) = d_out . out) and the result are each rounded to the dtype once. Each dS is rounded by itself,
  which N does not see where keys cancel in it: q and k have 2 u sqrt(sum_j (dS_ij k_jd)^2) more, what such errors add
  up to.
- As a whole, in the Euclidean norm: at most 2 E + f |truth| + 2 u |N|^2 / sum N, E now what eager autograd loses in the
  kernel's own dtype, with the fast forms too, or what is lost where d_out . out is taken from the rounded out, if that
  is more: of a row of one key autograd's dP cancels with its mean exactly. The last term is for few rows, where what
  either loses is luck: of n alike, 2 u |N| / sqrt(n).

Of few rows eager autograd may lose little by luck: what does not fit is held against the most that it loses in
evaluations of the formula in which every operation is rounded up or down as it comes, as in `budget`.

f = 2e-5 + 4 u32 S: float32 arithmetic, where S is the largest magnitude that scores are added up from (see
`budget`), and for a learned input the unit roundoff of its own dtype. Triton's interpreter cuts bfloat16 off
instead of rounding it: there f has 2 u more as a whole.

Some errors are absolute. The derivative of a score is itself a difference (1 - tanh^2), good to some 8 u32 of the
gradient that an unmodified score would have (for a learned input: of one heavy pair's); and what lies below the
smallest normal number of a format may vanish.

A gradient that is exactly 0 because no pair is visible must be exactly 0. NaN never passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import MappingProxyType

import torch

from flashgen.problems.calls import Call
from flashgen.verify.budget import (
    U32,
    Reference,
    Verdict,
    as_stored,
    cut_off,
    roundoff,
    score_magnitude,
    what_was_drawn,
    worst_of,
)
from flashgen.verify.eager_gradients import Loss, eager_gradients, evaluate, gradients_of, leaves_of
from flashgen.verify.places import Places
from flashgen.verify.rounded import ExactSlopes, FastFunctions, random_roundings
from flashgen.verify.uncancelled import grouped, uncancelled

RELATIVE = 2e-5
DERIVATIVE = 8 * U32
# Draws of signs for learned inputs.
SIGNS = 4


@dataclass(frozen=True)
class _Bound:
    """Of one gradient: the truth, N, the absolute error of a right kernel and what roundings of dS add up to, element
    by element; what is lost as a whole by the rounding of out; f, u, and what f has more as a whole.
    """

    truth: torch.Tensor
    magnitude: torch.Tensor
    absolute: torch.Tensor
    walk: torch.Tensor | None
    of_out: float
    float32: float
    u: float
    cut: float


OfRow = Callable[[torch.Tensor], torch.Tensor]
Gradients = Mapping[str, torch.Tensor]


def judge_gradients(
    found: Mapping[str, torch.Tensor], call: Call, loss: Loss, reference: Reference, scale: float | None = None,
    converted: Mapping[str, torch.dtype] = MappingProxyType({}),
) -> Verdict:  # fmt: skip
    """Compare a kernel's gradients, by argument, with those of the formula on the same call.

    `converted` has the dtypes to which learned inputs are converted, and from which their gradients are.
    """
    malformed = _malformed(found, call, loss)
    if malformed:
        return Verdict(math.inf, 0.0, False, malformed)
    # What passes beside the smaller bound would pass beside the larger one, which takes longer.
    bounds = _bounds(call, loss, reference, scale, converted, signs=0)
    for name, bound in bounds.items():
        if not bool(bound.truth.isfinite().all()):
            why = f"d_{name} of the formula itself is not finite, in float64{what_was_drawn(call)}"
            return Verdict(math.inf, 0.0, False, why)
    with nullcontext() if call.q.dtype == torch.float32 else FastFunctions():
        exact = [eager_gradients(call, loss, reference, scale, torch.float32)]
        own = [eager_gradients(call, loss, reference, scale, call.q.dtype)]
    verdict = _beside(found, bounds, exact, own)
    if loss.learned and not verdict.is_final:
        bounds = _bounds(call, loss, reference, scale, converted, signs=SIGNS)
    for rounding in random_roundings(call.q.dtype):
        if verdict.is_final:
            break
        with rounding:
            drawn = eager_gradients(call, loss, reference, scale, torch.float64)
        exact.append(drawn)
        own.append(drawn)
        verdict = _beside(found, bounds, exact, own)
    return verdict


def _beside(
    found: Gradients, bounds: Mapping[str, _Bound], exact: Sequence[Gradients], own: Sequence[Gradients]
) -> Verdict:
    """The verdict where E is the most that one of these evaluations loses."""
    verdicts = []
    for name, bound in bounds.items():
        if bound.truth.numel():
            of_row: OfRow = _last_axis if name in ("q", "k", "v") else _each
            answer = found[name].double()
            verdicts.append(_row_by_row(name, answer, [each[name].double() for each in exact], bound, of_row))
            verdicts.append(_as_a_whole(name, answer, [each[name].double() for each in own], bound, of_row))
    return max(verdicts, key=_closeness, default=Verdict(0.0, 0.0, True, "every gradient is empty"))


def _last_axis(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.amax(-1)


def _each(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _closeness(verdict: Verdict) -> tuple[bool, float]:
    share = verdict.error / verdict.budget if verdict.budget else (math.inf if verdict.error else 0.0)
    return not verdict.ok, share


def _bounds(
    call: Call, loss: Loss, reference: Reference, scale: float | None, converted: Mapping[str, torch.dtype], signs: int
) -> dict[str, _Bound]:
    leaves = leaves_of(call, loss, torch.float64)
    with Places() as places, ExactSlopes():
        out, lse = evaluate(reference, call, leaves, scale)
    d_out, d_lse = loss.d_out.double(), loss.d_lse.double() if loss.d_lse is not None else torch.zeros_like(lse)
    truth = gradients_of((out, lse), leaves, loss, keep=True)

    with torch.no_grad():
        spread, row = uncancelled(call, leaves, d_out, lse, d_lse, reference, scale)
    others = {name: leaf for name, leaf in leaves.items() if name != "v"}
    singly = _singly((out, lse), others, row, places, signs)
    magnitudes = {name: truth[name].abs() + single for name, single in singly.items()}
    of_out = _of_rounded_out(call, (out, lse), others, d_out)
    magnitudes["v"] = gradients_of((out, lse), {"v": leaves["v"]}, Loss(d_out.abs(), None))["v"]

    seen = lse.detach()[lse.isfinite()]
    scores = float(score_magnitude(call, scale).max()) + (float(seen.abs().max()) if seen.numel() else 0.0)
    u, cut = roundoff(call.q), 2 * roundoff(call.q) if cut_off(call.q) else 0.0
    float32 = RELATIVE + 4 * U32 * scores
    absolute = _absolute(call, loss, leaves, spread, row, magnitudes, scale)
    walk = _walk(call, leaves, spread, scale)
    own = dict.fromkeys(loss.names, float32)
    for name in loss.learned:
        tensor = call.inputs[name]
        own[name] += max(roundoff(tensor), roundoff(tensor.to(converted.get(name, tensor.dtype))))
    return {
        name: _Bound(truth[name], magnitudes[name], absolute[name], walk.get(name), of_out[name], own[name], u, cut)
        for name in loss.names
    }


def _singly(
    outputs: tuple[torch.Tensor, torch.Tensor], leaves: Mapping[str, torch.Tensor], row: torch.Tensor, places: Places,
    signs: int,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """|gradient of sum_i w_i lse_i|; of learned inputs place by place, the largest over so many draws of signs of the
    rows, and over none."""
    unread = torch.zeros_like(outputs[0])
    own = {name: leaf for name, leaf in leaves.items() if name in ("q", "k")}
    found = {name: g.abs() for name, g in gradients_of(outputs, leaves, Loss(unread, row), keep=True).items()}
    generator = torch.Generator().manual_seed(0)
    # The formula's lse depends on nothing where its score does not.
    for name in leaves.keys() - own.keys() if outputs[1].requires_grad else ():
        drawn = [1 - 2 * torch.randint(2, row.shape, generator=generator).to(row) for _ in range(signs)]
        of_draws = [places.gradients(outputs[1], row * each, leaves[name]) for each in (torch.ones_like(row), *drawn)]
        found[name] = torch.stack(of_draws).amax(0)
    return found


def _of_rounded_out(
    call: Call, outputs: tuple[torch.Tensor, torch.Tensor], leaves: Mapping[str, torch.Tensor], d_out: torch.Tensor
) -> dict[str, float]:
    """What is lost as a whole where d_out . out, a part of each dS of its row, is taken from the rounded out."""
    out, _ = outputs
    nothing = {"v": 0.0} | dict.fromkeys(leaves, 0.0)
    if call.q.dtype == torch.float32:
        return nothing
    with torch.no_grad():
        off = (d_out * (as_stored(out, call.q) - out)).sum(-1)
    lost = gradients_of(outputs, leaves, Loss(torch.zeros_like(out), off), keep=True)
    return nothing | {name: float(gradient.norm()) for name, gradient in lost.items()}


def _walk(
    call: Call, leaves: Mapping[str, torch.Tensor], spread: torch.Tensor, scale: float | None
) -> dict[str, torch.Tensor]:
    """For q and k, what errors of each dS by its own size add up to."""
    factor = 1 / math.sqrt(call.q.shape[3]) if scale is None else abs(scale)
    with torch.no_grad():
        squares = spread.square()
        by_key = _summed(squares.transpose(-1, -2) @ leaves["q"].square(), call)
        return {"q": factor * (squares @ grouped(leaves["k"].square(), call)).sqrt(), "k": factor * by_key.sqrt()}


def _absolute(
    call: Call, loss: Loss, leaves: Mapping[str, torch.Tensor], spread: torch.Tensor,
    row: torch.Tensor, magnitudes: Mapping[str, torch.Tensor], scale: float | None,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """What is lost of a score's derivative, and below the smallest number of the formats."""
    factor = 1 / math.sqrt(call.q.shape[3]) if scale is None else abs(scale)
    kv_heads, kv_len = call.k.shape[1:3]
    heads, q_len = call.q.shape[1:3]
    with torch.no_grad():
        unmodified = {
            "q": factor * spread @ grouped(leaves["k"].abs(), call),
            "k": _summed(factor * spread.transpose(-1, -2) @ leaves["q"].abs(), call),
        }
        # A weight or a gradient of a score below `least` may be off by as much, in each pair that is added up.
        least = 2.0**-25 if call.q.dtype == torch.float16 else 2.0**-125
        largest = max(1.0, float(spread.amax())) * max(1.0, factor)
        values = (leaves["q"], leaves["k"], leaves["v"], loss.d_out)
        pairs = max(q_len * heads // kv_heads * len(call.q) // len(call.k), kv_len)
        vanishing = least * (1 + pairs * largest * max(float(tensor.abs().max()) for tensor in values))
        # A gradient in float16 is one beside an input in float16, whatever q is.
        halves = {name for name in loss.learned if call.inputs[name].dtype == torch.float16}
        return {
            name: (vanishing + 2.0**-25 * (name in halves)) * (magnitude > 0)
            + DERIVATIVE * unmodified.get(name, row.max() * (magnitude > 0))
            for name, magnitude in magnitudes.items()
        }


def _row_by_row(name: str, found: torch.Tensor, eager: Sequence[torch.Tensor], bound: _Bound, of_row: OfRow) -> Verdict:
    scale = of_row(bound.magnitude)
    lost = of_row(
        torch.stack([(each - bound.truth).abs().nan_to_num(0, 0) for each in eager]).amax(0)
    ) / scale.clamp_min(torch.finfo(torch.float64).tiny)
    # Where eager overflows it says nothing of what is lost.
    lost = torch.where((scale > 0) & lost.isfinite(), lost, 0.0)
    error = of_row((found - bound.truth).abs())
    budget = (2 * lost.max() + 4 * bound.u + bound.float32) * scale + of_row(bound.absolute)
    if bound.walk is not None:
        budget = budget + 2 * bound.u * of_row(bound.walk)
    where = "[batch, head, row]" if name in ("q", "k", "v") else "element"
    return worst_of(f"d_{name} at {where}", error, budget, torch.where(error == 0, 0.0, error / budget))


def _as_a_whole(name: str, found: torch.Tensor, eager: Sequence[torch.Tensor], bound: _Bound, of_row: OfRow) -> Verdict:
    size = float(bound.magnitude.norm())
    losses = [bound.of_out, *(float((each - bound.truth).norm()) for each in eager)]
    lost = max(each if math.isfinite(each) else 2 * bound.u * size for each in losses)
    rows = of_row(bound.magnitude)
    luck = 2 * bound.u * size * float(rows.norm() / rows.sum()) if size else 0.0
    relative = (bound.float32 + bound.cut) * float(bound.truth.norm())
    budget = 2 * lost + relative + luck + float(bound.absolute.norm())
    error = float((found - bound.truth).norm())
    error = math.inf if math.isnan(error) else error
    return Verdict(error, budget, error <= budget, f"d_{name} as a whole")


def _malformed(found: Mapping[str, torch.Tensor], call: Call, loss: Loss) -> str | None:
    for name, leaf in leaves_of(call, loss).items():
        gradient = found[name]
        if gradient.shape != leaf.shape or gradient.dtype != leaf.dtype:
            return f"d_{name} is {gradient.dtype} {tuple(gradient.shape)}; expected {leaf.dtype} {tuple(leaf.shape)}"
    return None


def _summed(tensor: torch.Tensor, call: Call) -> torch.Tensor:
    """A tensor [batch, heads, kv_len, head_dim] added up over the heads, and batch elements, that share a key."""
    found = tensor.unflatten(1, (call.k.shape[1], -1)).sum(2)
    return found.sum(0, keepdim=True) if len(call.k) < len(call.q) else found
