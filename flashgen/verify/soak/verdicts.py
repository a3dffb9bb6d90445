"""What a call gave beside the right answer: within its budget or not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch

from flashgen.problems.calls import Call
from flashgen.problems.dropped import Dropout, Dropping
from flashgen.spec import load
from flashgen.verify.bearable import HUGE
from flashgen.verify.budget import Verdict, judge
from flashgen.verify.eager_gradients import Loss, evaluate, gradients_of, leaves_of
from flashgen.verify.gradient_budget import judge_gradients
from flashgen.verify.row_terms import counted_apart
from flashgen.verify.soak.attend import Oracle
from flashgen.verify.soak.case import Case
from flashgen.verify.uncancelled import as_rounded

# Of what a slightly other call loses, beside the factor of the budgets.
LOSSES = 2
# What their weights may lose in the backward pass.
HUGE_ROUNDING = 0.05
# Largest values that a 16-bit gradient may have and still say something.
ROOM = 0.25
# What verdicts say of a formula.
_NOT_FINITE = "itself is not finite"
# With fewer visible pairs a draw shows little.
LEAST_VISIBLE = 0.02


@dataclass(frozen=True)
class Finding:
    """What came of a case.

    `kind`: "passed"; "void", where the formula has no answer that could be compared; else what failed: "refused",
    "error", "out", "lse", "reference", "schedule", "d_q" and so on, "lost negation", or "evaluation", the soak's own.
    `share` is the largest error beside what is allowed.
    """

    kind: str
    detail: str = ""
    share: float = 0.0

    @property
    def failed(self) -> bool:
        return self.kind not in ("passed", "void")


@dataclass(frozen=True)
class Truth:
    """The right answer in float64: out, lse, which pairs are visible, and where rows end beyond HUGE.

    `nan_in_float32`: in float32, where a factor of 1e-60 is 0, infinity times it makes NaN of a row that sees nothing.
    """

    call: Call
    out: torch.Tensor
    lse: torch.Tensor
    visible: torch.Tensor
    dtype: torch.dtype
    nan_in_float32: bool
    dropout_p: float = 0.0

    @classmethod
    def of(cls, oracle: Oracle, case: Case, call: Call) -> Truth:
        keywords = {**call.keywords, "scale": case.scale, "return_lse": True}
        with torch.no_grad():
            out, lse = oracle.reference(call.q.double(), call.k.double(), call.v.double(), **keywords)
            empty = lse == -math.inf
            lost = False
            if bool(empty.any()):
                _, in_float32 = oracle.reference(call.q.float(), call.k.float(), call.v.float(), **keywords)
                lost = bool((in_float32.isnan() & empty).any())
            visible = oracle.visible(call.keywords, call.q.device)
        return cls(call, out, lse, visible, call.q.dtype, lost, case.dropout_p)

    @property
    def huge(self) -> torch.Tensor:
        return self.lse.isfinite() & (self.lse.abs() > HUGE)

    def spared(self, loss: Loss) -> Loss:
        """The loss without what comes down through rows of huge scores: `of_huge_gradients` looks at these."""
        if not bool(self.huge.any()):
            return loss
        d_lse = None if loss.d_lse is None else loss.d_lse.masked_fill(self.huge, 0)
        return Loss(loss.d_out.masked_fill(self.huge[..., None], 0), d_lse, loss.learned)

    def void(self, lenient: bool) -> str:
        """Why nothing can be compared, empty where it can."""
        finite = self.out.isfinite().all(-1) & self.lse.isfinite()
        if not bool((finite | (self.lse == -math.inf)).all()):
            return "the formula is not finite"
        if self.nan_in_float32:
            return "the formula is not finite in float32"
        if not lenient and float(self.visible.double().mean()) < LEAST_VISIBLE:
            return "hardly any pair is visible"
        return ""


def of_outputs(out: torch.Tensor, lse: torch.Tensor, truth: Truth, oracle: Oracle, case: Case) -> Finding:
    """out and lse: rows of ordinary scores by the budget; of huge ones what float32 softmax gives is right too."""
    if out.shape != truth.out.shape or lse.shape != truth.lse.shape:
        return Finding("out", f"out is {tuple(out.shape)}, lse {tuple(lse.shape)}", math.inf)
    huge = truth.huge
    apart = counted_apart(load(dict(case.spec)), truth.call)

    def judged(noisy: bool) -> Finding:
        patched = _Patched(oracle, truth, noisy=noisy)
        kept = 1 - truth.dropout_p
        return finding_of(judge(out, lse, truth.call, patched.reference, case.scale, apart, ~huge, kept=kept))

    finding = _lucky(judged)
    if finding.failed or not bool(huge.any()):
        return finding
    beyond = _beyond_values(out, lse, truth, huge)
    return beyond or finding


def _beyond_values(out: torch.Tensor, lse: torch.Tensor, truth: Truth, huge: torch.Tensor) -> Finding | None:
    """Whatever weights a row of huge scores has, its output is a mean of values, and lse is as large as the scores."""
    group = out.shape[1] // truth.call.v.shape[1]
    most = truth.call.v.double().abs().amax(2).repeat_interleave(group, 1)[:, :, None] * 1.02 + 1e-4
    most = most / (1 - truth.dropout_p)
    wrong = (~(out.double().abs() <= most).all(-1)) & huge
    if bool(wrong.any()):
        return Finding("out", f"larger than every value at {wrong.nonzero()[0].tolist()}, scores are huge", math.inf)
    near = (lse.double() - truth.lse).abs() <= 1e-5 * truth.lse.abs()
    if not bool((near | ~huge).all()):
        return Finding("lse", f"huge, and wrong at {(~near & huge).nonzero()[0].tolist()}", math.inf)
    return None


def dropout_of(case: Case, call: Call) -> dict[str, Any]:
    """What the module's functions are told of dropout."""
    if "dropout" not in case.spec:
        return {}
    return Dropout(case.dropout_p, case.values).keywords(call.q.device)


class _Patched:
    """An oracle for the budgets.

    `flat`: the lse of rows of huge scores is 0, without a gradient: they widen no budget. `noisy`: what is lost is that
    of a call whose products are slightly others; few rows, or products of 0 beside terms that cancel, may lose nothing
    by luck.
    """

    def __init__(self, oracle: Oracle, truth: Truth, flat: bool = False, noisy: bool = False) -> None:
        self._oracle, self._truth, self._flat, self._noisy = oracle, truth, flat, noisy

    def reference(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, /, **keywords: Any) -> Any:
        both, exact = keywords.pop("return_lse", False), q.dtype == torch.float64
        out, lse = self._noised(q, k, v, keywords) if self._noisy and not exact else self._plain(q, k, v, keywords)
        if self._flat:
            lse = torch.where(self._truth.huge, 0.0, lse)
        return (out, lse) if both else out

    def _plain(self, *given: Any, oracle: Oracle | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v, keywords = given
        found: tuple[torch.Tensor, torch.Tensor] = (oracle or self._oracle).reference(
            q, k, v, **keywords, return_lse=True
        )
        return found

    def _noised(self, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The truth and, beside it, what the other call loses, twice: a kernel adds up in another order and units."""
        q, k, v, keywords = given
        wide = (q.double(), k.double(), v.double(), keywords)
        own = self._oracle
        noisy = Oracle(own.case, own.rough, noise=0.01, fast=own.fast, drops=own.drops)
        truth, rounded = self._plain(*wide), self._plain(q, k, v, keywords, oracle=noisy)
        exact = self._plain(*wide, oracle=noisy)
        out = truth[0] + LOSSES * (rounded[0] - exact[0])
        # Rows that see nothing lose nothing.
        seen = truth[1].isfinite()
        lse = torch.where(seen, truth[1] + torch.where(seen, LOSSES * (rounded[1] - exact[1]), 0.0), -math.inf)
        return out, lse


def _lucky(judged: Callable[[bool], Finding]) -> Finding:
    """A finding of a call or, where it fails, beside what a slightly other call loses."""
    finding = judged(False)
    return judged(True) if finding.failed else finding


def of_gradients(found: Mapping[str, torch.Tensor], truth: Truth, loss: Loss, oracle: Oracle, case: Case) -> Finding:
    """Gradients of what comes down through rows of ordinary scores."""
    inputs = case.spec.get("inputs", {}) if case.converted else {}
    converted = {name: getattr(torch, inputs[name]["dtype"]) for name in loss.learned if name in inputs}
    variant = load(dict(case.spec))

    def judged(noisy: bool) -> Finding:
        patched = _Patched(oracle, truth, flat=True, noisy=noisy)
        undropped = _Patched(Oracle(case, oracle.rough, fast=oracle.fast, drops=False), truth, flat=True, noisy=noisy)
        reference = Dropping(patched.reference, undropped.reference) if oracle.drops else patched.reference
        rounded = as_rounded(reference, variant)
        verdict = judge_gradients(found, truth.call, loss, rounded, case.scale, converted)
        return finding_or_void(verdict)

    finding = _lucky(judged)
    limit = ROOM * torch.finfo(truth.dtype).max
    if finding.failed and any(not bool((gradient.abs() <= limit).all()) for gradient in found.values()):
        return Finding("void", "a gradient beyond what its dtype holds")
    return finding


def of_huge_gradients(d_v: torch.Tensor, truth: Truth) -> Finding:
    """The gradient of v under ones in rows of huge scores, 0 elsewhere: the weights of a row add up to 1."""
    group = truth.out.shape[1] // d_v.shape[1]
    rows = truth.huge.sum(-1).unflatten(1, (d_v.shape[1], group)).sum(2).double()
    rows = rows.sum(0, keepdim=True) if len(d_v) < len(rows) else rows
    error = (d_v.double().sum(2) - rows[..., None]).abs() / rows[..., None].clamp_min(1)
    worst = float(error.max())
    if worst <= HUGE_ROUNDING:
        return Finding("passed", "weights of huge scores", worst / HUGE_ROUNDING)
    return Finding("d_v", f"weights of rows with huge scores add up to {1 + worst:.3g} times what they should", worst)


def of_reference(module: ModuleType, truth: Truth, case: Case) -> Finding:
    """Whether the module's eager reference is right, in float64."""
    call = truth.call
    wide = (call.q.double(), call.k.double(), call.v.double())
    with torch.no_grad():
        out, lse = module.reference(*wide, **call.keywords, scale=case.scale, return_lse=True, **dropout_of(case, call))
    size = call.v.double().abs().max() / (1 - case.dropout_p) + 1e-30
    error = float((out - truth.out).abs().max() / size)
    if not error <= 1e-6:
        return Finding("reference", f"out is off by {error:.2g} of the largest value", error / 1e-6)
    same = (lse.double() - truth.lse).abs() <= 1e-6 * (1 + truth.lse.abs())
    if not bool((same | (lse.double() == truth.lse)).all()):
        return Finding("reference", "lse", math.inf)
    return Finding("passed")


def of_reference_gradients(module: ModuleType, truth: Truth, loss: Loss, oracle: Oracle, case: Case) -> Finding:
    """Whether gradients of the module's eager reference are right, in float64."""
    leaves = leaves_of(truth.call, loss, torch.float64)
    reference = partial(module.reference, **dropout_of(case, truth.call))
    found, right = (
        gradients_of(evaluate(each, truth.call, leaves, case.scale), leaves, loss)
        for each in (reference, oracle.reference)
    )
    for name, exact in right.items():
        size = float(exact.abs().max()) if exact.numel() else 0.0
        error = float((found[name] - exact).abs().max()) if exact.numel() else 0.0
        if math.isfinite(size) and not error <= 1e-6 * (size + 1):
            return Finding("reference", f"d_{name} is off by {error:.2g}, the largest is {size:.2g}", math.inf)
    return Finding("passed")


def finding_or_void(verdict: Verdict) -> Finding:
    """`finding_of`, but "void" where the formula may have no answer: for one sequence, or for gradients alone."""
    return Finding("void", verdict.detail) if _NOT_FINITE in verdict.detail else finding_of(verdict)


def finding_of(verdict: Verdict) -> Finding:
    """What a verdict comes to, named by what is wrong."""
    share = verdict.error / verdict.budget if verdict.budget else math.inf if verdict.error else 0.0
    if verdict.ok:
        # Where every row that counts is exact, the worst is one that does not.
        return Finding("passed", verdict.detail, share if math.isfinite(share) else 0.0)
    kind = verdict.detail.split(" ", 1)[0] if verdict.detail.startswith(("out", "lse", "d_")) else "out"
    return Finding(kind, f"{verdict.detail}: {verdict.error:.3g}, allowed {verdict.budget:.3g}", share)
