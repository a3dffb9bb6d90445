"""A case tried: the spec built, the call made on poisoned memory, and everything that comes back compared."""

from __future__ import annotations

import math
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from triton.runtime.errors import OutOfResources

import flashgen
from flashgen.codegen import scheduled_kernels
from flashgen.errors import SpecError
from flashgen.problems import Call
from flashgen.runtime import Config
from flashgen.runtime.lookup import current_device
from flashgen.spec import load
from flashgen.tuning.space import Task, search_space
from flashgen.verify.budget import Verdict, judge
from flashgen.verify.gradient_budget import Loss, gradients_of, judge_gradients, leaves_of
from flashgen.verify.poison import poisoned
from flashgen.verify.soak.attend import Oracle
from flashgen.verify.soak.case import Case
from flashgen.verify.soak.schedules import schedule_fault
from flashgen.verify.soak.tensors import call_of, loss_of, with_defaults

# A row that ends beyond this has scores whose float32 neighbours are far apart: what float32 softmax gives is right.
HUGE = 1e5
# Largest values that a 16-bit gradient may have and still say something.
ROOM = 0.25
# With fewer visible pairs a draw shows little.
LEAST_VISIBLE = 0.02


@dataclass(frozen=True)
class Finding:
    """What came of a case. `kind`: "passed"; "void", where the formula has no answer that could be compared; else what
    failed ("refused", "error", "out", "lse", "reference", "schedule", "d_q", ...). `share` is the largest error
    beside what is allowed.
    """

    kind: str
    detail: str = ""
    share: float = 0.0

    @property
    def failed(self) -> bool:
        return self.kind not in ("passed", "void")


@dataclass(frozen=True)
class Tried:
    """Finding, and how long it took in seconds."""

    finding: Finding
    seconds: float


def attempt(case: Case, device: str, lenient: bool = False) -> Tried:
    """Try one case on "cpu" or "cuda". `lenient`: also where hardly any pair is visible."""
    start = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        finding = _judged(case, device, lenient)
    return Tried(finding, time.monotonic() - start)


def _judged(case: Case, device: str, lenient: bool) -> Finding:
    call = call_of(case, device)
    oracle = Oracle(case, rough=_is_rough(case, device))
    truth = _Truth.of(oracle, case, with_defaults(case, call))
    if truth.void(lenient):
        return Finding("void", truth.void(lenient))
    with tempfile.TemporaryDirectory() as folder:
        try:
            module = flashgen.build(dict(case.spec), out=folder, verify=False, compile=False, tune=False)
        except SpecError as error:
            unused = "which neither score nor mask reads" in str(error) or "which nothing reads" in str(error)
            return Finding("void" if unused else "refused", str(error))
        except Exception as error:  # noqa: BLE001 - whatever a build raises is what was found
            return Finding("refused", _reason(error))
        try:
            try:
                return _compared(case, call, module, oracle, truth, device)
            except OutOfResources:
                # Of a search space the compiler judges the rest.
                return _compared(replace(case, configs={}), call, module, oracle, truth, device)
        except Exception as error:  # noqa: BLE001 - the same of a call
            return Finding("error", _reason(error))


def _is_rough(case: Case, device: str) -> bool:
    return device != "cpu" and case.dtype != "float32" and bool(case.spec.get("approximate", True))


def _reason(error: BaseException) -> str:
    """The first line of the exception at the root of one, and where it was raised."""
    while error.__cause__ is not None:
        error = error.__cause__
    frame = traceback.extract_tb(error.__traceback__)[-1:]
    place = f" ({Path(frame[0].filename).name}:{frame[0].name})" if frame else ""
    lines = f"{type(error).__name__}: {error}".strip().splitlines()
    # Triton's compiler shows the line first and says last what is wrong with it.
    return (lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}")[:400] + place


@dataclass(frozen=True)
class _Truth:
    """The right answer in float64: out, lse, which pairs are visible, and where rows end beyond HUGE."""

    call: Call
    out: torch.Tensor
    lse: torch.Tensor
    visible: torch.Tensor
    dtype: torch.dtype

    @classmethod
    def of(cls, oracle: Oracle, case: Case, call: Call) -> _Truth:
        wide = (call.q.double(), call.k.double(), call.v.double())
        with torch.no_grad():
            out, lse = oracle.reference(*wide, **call.keywords, scale=case.scale, return_lse=True)
            visible = oracle.visible(call.keywords, call.q.device)
        return cls(call, out, lse, visible, call.q.dtype)

    @property
    def huge(self) -> torch.Tensor:
        return self.lse.isfinite() & (self.lse.abs() > HUGE)

    def void(self, lenient: bool) -> str:
        """Why nothing can be compared, empty where it can."""
        finite = self.out.isfinite().all(-1) & self.lse.isfinite()
        if not bool((finite | (self.lse == -math.inf)).all()):
            return "the formula is not finite"
        if not lenient and float(self.visible.double().mean()) < LEAST_VISIBLE:
            return "hardly any pair is visible"
        return ""


def _compared(case: Case, call: Call, module: ModuleType, oracle: Oracle, truth: _Truth, device: str) -> Finding:
    """The first of the comparisons that fails."""
    configs = _configs(case, device)
    leaves = leaves_of(call, loss := loss_of(case, call))
    if case.d_out == "none":
        leaves = {name: leaf.detach() for name, leaf in leaves.items()}
    keywords: dict[str, Any] = {**call.keywords, **{name: leaves[name] for name in loss.learned}}
    if case.defaults:
        keywords.pop("slopes", None)
        loss = replace(loss, learned=tuple(name for name in loss.learned if name != "slopes"))
        leaves = {name: leaf for name, leaf in leaves.items() if name != "slopes"}
    arguments = (leaves["q"], leaves["k"], leaves["v"])
    plan = None
    with poisoned():
        if case.planned and hasattr(module, "plan"):
            plan = module.plan(*arguments, **keywords, config=configs.get("forward"))
            wrong = schedule_fault(plan, truth.visible)
            if wrong:
                return Finding("schedule", wrong)
        out, lse = module.attention(
            *arguments, **keywords, **({} if plan is None else {"plan": plan}), scale=case.scale, return_lse=True,
            config=configs.get("forward"), deterministic=case.deterministic,
            backward_config={name: each for name, each in configs.items() if name != "forward"} or None,
        )  # fmt: skip
        found = gradients_of((out, lse), leaves, loss, keep=case.deterministic) if case.d_out != "none" else {}
        again = gradients_of((out, lse), leaves, loss) if found and case.deterministic else found
    findings = [_outputs(out.detach(), lse.detach(), truth, oracle, case), _reference(module, truth, case)]
    for name in found:
        if not torch.equal(found[name], again[name]):
            findings.append(Finding(f"d_{name}", "differs between two deterministic runs", math.inf))
    if found:
        findings.append(_gradients(found, truth, loss, oracle, case))
    failed = [finding for finding in findings if finding.failed]
    return failed[0] if failed else max(findings, key=lambda finding: (finding.kind == "void", finding.share))


def _configs(case: Case, device: str) -> dict[str, str]:
    """The configs of a case by kernel: those that it names, or takes from the search space."""
    chosen = {}
    variant = load(dict(case.spec))
    capability = "sm_80" if device == "cpu" else current_device(0).capability
    for kernel, config in case.configs.items():
        if isinstance(config, str):
            chosen[kernel] = config
            continue
        scheduled = kernel in scheduled_kernels(variant)
        task = Task(kernel, capability, case.dtype, case.head_dim, case.v_head_dim, case.q_len, case.kv_len, scheduled)
        space = [each for each in search_space(task).configs if device != "cpu" or _is_quick(each, case)]
        # A backend has few configs beside the other: each gets its half.
        backends = sorted({each.backend for each in space})
        at, place = int(config * len(backends)), config * len(backends) % 1
        mine = [each for each in space if each.backend == backends[at]] if space else []
        if mine:
            chosen[kernel] = str(mine[int(place * len(mine))])
    return chosen


def _is_quick(config: Config, case: Case) -> bool:
    """Whether the interpreter is done with it soon: it takes as long for a small tile as for a large one."""
    tiles = -(-case.q_len // config.BM) * -(-case.kv_len // config.BN) * case.batch * case.heads
    return tiles <= 48 and config.BM * config.BN <= 128 * 64 and config.num_stages == 1 and config.num_warps == 4


def _outputs(out: torch.Tensor, lse: torch.Tensor, truth: _Truth, oracle: Oracle, case: Case) -> Finding:
    """out and lse: rows of ordinary scores by the budget; of huge ones what float32 softmax gives is right too."""
    if out.shape != truth.out.shape or lse.shape != truth.lse.shape:
        return Finding("out", f"out is {tuple(out.shape)}, lse {tuple(lse.shape)}", math.inf)
    huge = truth.huge
    answer = (torch.where(huge[..., None], truth.out.to(out.dtype), out), torch.where(huge, truth.lse.float(), lse))

    def judged(noisy: bool) -> Finding:
        patched = _Patched(oracle, truth, noisy=noisy)
        return _finding(judge(*answer, truth.call, patched.reference, case.scale))

    finding = _lucky(judged)
    if finding.failed or not bool(huge.any()):
        return finding
    beyond = _beyond_values(out, lse, truth, huge)
    return beyond or finding


def _beyond_values(out: torch.Tensor, lse: torch.Tensor, truth: _Truth, huge: torch.Tensor) -> Finding | None:
    """Whatever weights a row of huge scores has, its output is a mean of values, and lse is as large as the scores."""
    group = out.shape[1] // truth.call.v.shape[1]
    most = truth.call.v.double().abs().amax(2).repeat_interleave(group, 1)[:, :, None] * 1.02 + 1e-4
    wrong = (~(out.double().abs() <= most).all(-1)) & huge
    if bool(wrong.any()):
        return Finding("out", f"larger than every value at {wrong.nonzero()[0].tolist()}, scores are huge", math.inf)
    near = (lse.double() - truth.lse).abs() <= 1e-5 * truth.lse.abs()
    if not bool((near | ~huge).all()):
        return Finding("lse", f"huge, and wrong at {(~near & huge).nonzero()[0].tolist()}", math.inf)
    return None


class _Patched:
    """An oracle for the budgets, whose rows of huge scores are the truth whatever the precision: they widen none.

    `flat`: the lse of such rows is 0, without a gradient. `noisy`: what is lost is that of a call whose products are
    slightly others; few rows, or products of 0 beside terms that cancel, may lose nothing by luck.
    """

    def __init__(self, oracle: Oracle, truth: _Truth, flat: bool = False, noisy: bool = False) -> None:
        self._oracle, self._truth, self._flat, self._noisy = oracle, truth, flat, noisy

    def reference(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **keywords: Any) -> Any:
        both, exact = keywords.pop("return_lse", False), q.dtype == torch.float64
        out, lse = self._noised(q, k, v, keywords) if self._noisy and not exact else self._plain(q, k, v, keywords)
        huge = self._truth.huge
        if bool(huge.any()):
            if not exact and not self._flat:
                out = torch.where(huge[..., None], self._truth.out.to(out.dtype), out)
                lse = torch.where(huge, self._truth.lse.to(lse.dtype), lse)
            lse = torch.where(huge, 0.0, lse) if self._flat else lse
        return (out, lse) if both else out

    def _plain(self, *given: Any, oracle: Oracle | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v, keywords = given
        found: tuple[torch.Tensor, torch.Tensor] = (oracle or self._oracle).reference(
            q, k, v, **keywords, return_lse=True
        )
        return found

    def _noised(self, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The truth and, beside it, what the other call loses."""
        q, k, v, keywords = given
        wide = (q.double(), k.double(), v.double(), keywords)
        noisy = Oracle(self._oracle.case, self._oracle.rough, noise=0.01)
        truth, rounded = self._plain(*wide), self._plain(q, k, v, keywords, oracle=noisy)
        exact = self._plain(*wide, oracle=noisy)
        out = truth[0] + (rounded[0] - exact[0])
        # Rows that see nothing lose nothing.
        seen = truth[1].isfinite()
        lse = torch.where(seen, truth[1] + torch.where(seen, rounded[1] - exact[1], 0.0), -math.inf)
        return out, lse


def _lucky(judged: Callable[[bool], Finding]) -> Finding:
    """A finding of a call or, where it fails, beside what a slightly other call loses."""
    finding = judged(False)
    return judged(True) if finding.failed else finding


def _gradients(found: Mapping[str, torch.Tensor], truth: _Truth, loss: Loss, oracle: Oracle, case: Case) -> Finding:
    """Gradients of what flows through rows of ordinary scores, and that no other gives NaN."""
    for name, gradient in found.items():
        if bool(gradient.isnan().any()):
            return Finding(f"d_{name}", "NaN", math.inf)
    if bool(truth.huge.any()):
        return Finding("passed", "gradients of rows with huge scores are not compared")

    def judged(noisy: bool) -> Finding:
        patched = _Patched(oracle, truth, flat=True, noisy=noisy)
        verdict = judge_gradients(found, truth.call, loss, patched.reference, case.scale)
        nonsense = verdict.detail.endswith("not finite, in float64")
        return Finding("void", verdict.detail) if nonsense else _finding(verdict)

    finding = _lucky(judged)
    limit = ROOM * torch.finfo(truth.dtype).max
    if finding.failed and any(not bool((gradient.abs() <= limit).all()) for gradient in found.values()):
        return Finding("void", "a gradient beyond what its dtype holds")
    return finding


def _reference(module: ModuleType, truth: _Truth, case: Case) -> Finding:
    """The module's eager reference in float64."""
    call = truth.call
    wide = (call.q.double(), call.k.double(), call.v.double())
    with torch.no_grad():
        out, lse = module.reference(*wide, **call.keywords, scale=case.scale, return_lse=True)
    size = call.v.double().abs().max() + 1e-30
    error = float((out - truth.out).abs().max() / size)
    if not error <= 1e-6:
        return Finding("reference", f"out is off by {error:.2g} of the largest value", error / 1e-6)
    same = (lse.double() - truth.lse).abs() <= 1e-6 * (1 + truth.lse.abs())
    if not bool((same | (lse.double() == truth.lse)).all()):
        return Finding("reference", "lse", math.inf)
    return Finding("passed")


def _finding(verdict: Verdict) -> Finding:
    share = verdict.error / verdict.budget if verdict.budget else math.inf if verdict.error else 0.0
    if verdict.ok:
        return Finding("passed", verdict.detail, share)
    kind = verdict.detail.split(" ", 1)[0] if verdict.detail.startswith(("out", "lse", "d_")) else "out"
    return Finding(kind, f"{verdict.detail}: {verdict.error:.3g}, allowed {verdict.budget:.3g}", share)
