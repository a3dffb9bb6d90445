"""A case tried: the spec built, the call made on poisoned memory, and everything that comes back compared."""

from __future__ import annotations

import math
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from triton.runtime.errors import OutOfResources, PTXASError

import flashgen
from flashgen.codegen import scheduled_kernels
from flashgen.errors import SpecError, UnreadError
from flashgen.problems.calls import Call
from flashgen.runtime import Config
from flashgen.runtime.lookup import current_device
from flashgen.spec import load
from flashgen.tuning.space import Task, search_space
from flashgen.verify.eager_gradients import gradients_of, leaves_of
from flashgen.verify.poison import poisoned
from flashgen.verify.soak.assembly import Compiled, watched
from flashgen.verify.soak.attend import Oracle
from flashgen.verify.soak.case import Case
from flashgen.verify.soak.guarded import with_guards
from flashgen.verify.soak.packed import packed_finding
from flashgen.verify.soak.paged import paged_finding
from flashgen.verify.soak.schedules import schedule_fault
from flashgen.verify.soak.tensors import call_of, elements, loss_of, with_defaults
from flashgen.verify.soak.verdicts import (
    Finding,
    Truth,
    dropout_of,
    of_gradients,
    of_huge_gradients,
    of_outputs,
    of_reference,
    of_reference_gradients,
)

# Elements of the largest input that is drawn, a quarter of a GiB in float64.
MOST_ELEMENTS = 2**25


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
    oracle = Oracle(case, rough=_is_rough(case, device), fast=device != "cpu")
    if elements(case) > MOST_ELEMENTS:
        return Finding("void", "an input of this size says no more than a smaller one")
    try:
        call = call_of(case, device)
        truth = Truth.of(oracle, case, with_defaults(case, call))
    except Exception as error:  # noqa: BLE001 - a fault of the soak's own; or of a step that made a case smaller
        return Finding("evaluation", _reason(error))
    if truth.void(lenient):
        return Finding("void", truth.void(lenient))
    with tempfile.TemporaryDirectory() as folder:
        try:
            module = flashgen.build(dict(case.spec), out=folder, verify=False, compile=False, tune=False)
        except UnreadError as error:
            return Finding("void", str(error))
        except SpecError as error:
            return Finding("refused", str(error))
        except Exception as error:  # noqa: BLE001 - whatever a build raises is what was found
            return Finding("refused", _reason(error))
        module = module if device == "cpu" else with_guards(module, case.values)
        try:
            with watched() as compiled:
                try:
                    finding = _compared(case, call, module, oracle, truth, device)
                except (OutOfResources, PTXASError) as error:
                    if not _lacks_resources(error):
                        raise
                    # Of a search space the compiler judges the rest.
                    finding = _compared(replace(case, configs={}), call, module, oracle, truth, device)
            return _assembled(compiled, device) or finding
        except Exception as error:  # noqa: BLE001 - the same of a call
            return Finding("error", _reason(error))


def _lacks_resources(error: OutOfResources | PTXASError) -> bool:
    """Whether a config wants more shared memory, or registers at once, than there are."""
    return isinstance(error, OutOfResources) or "Register allocation failed" in str(error)


def _assembled(compiled: Compiled, device: str) -> Finding | None:
    """What the assembler got wrong, whether or not it shows in the results."""
    lost = compiled.lost_negations()
    if lost:
        return Finding("lost negation", lost)
    wrong = "" if device == "cpu" else compiled.wrong_sums(current_device(0).capability)
    return Finding("wrong sum", wrong) if wrong else None


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


def _compared(case: Case, call: Call, module: ModuleType, oracle: Oracle, truth: Truth, device: str) -> Finding:
    """The first of the comparisons that fails."""
    configs = _configs(case, device)
    if case.lengths and not bool(truth.huge.any()):
        if case.paged:
            return paged_finding(case, call, module, device)
        return packed_finding(case, call, module, configs)
    leaves = leaves_of(call, loss := truth.spared(loss_of(case, call)))
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
            config=configs.get("forward"), deterministic=case.deterministic, **dropout_of(case, call),
            backward_config={name: each for name, each in configs.items() if name != "forward"} or None,
        )  # fmt: skip
        found = gradients_of((out, lse), leaves, loss, keep=True) if case.d_out != "none" else {}
        huge = _through_huge_rows(out, leaves["v"], truth) if found else None
        again = gradients_of((out, lse), leaves, loss) if found and case.deterministic else found
    findings = [of_outputs(out.detach(), lse.detach(), truth, oracle, case), of_reference(module, truth, case)]
    for name in found:
        if not torch.equal(found[name], again[name]):
            findings.append(Finding(f"d_{name}", "differs between two deterministic runs", math.inf))
    if huge is not None:
        findings.append(of_huge_gradients(huge, truth))
    if found:
        findings.append(of_gradients(found, truth, loss, oracle, case))
        findings.append(of_reference_gradients(module, truth, loss, oracle, case))
    failed = [finding for finding in findings if finding.failed]
    return failed[0] if failed else max(findings, key=lambda finding: (finding.kind == "void", finding.share))


def _through_huge_rows(out: torch.Tensor, v: torch.Tensor, truth: Truth) -> torch.Tensor | None:
    """The gradient of v under ones in rows of huge scores; None where there are no such rows, or weights dropped."""
    if truth.dropout_p or not bool(truth.huge.any()):
        return None
    ones = truth.huge[..., None].expand(out.shape).to(out.dtype)
    return torch.autograd.grad(out, v, ones, retain_graph=True)[0]


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
        exact = case.dtype == "float32" and not variant.allow_tf32
        sizes = case.head_dim, case.v_head_dim, case.q_len, case.kv_len
        task = Task(kernel, capability, case.dtype, *sizes, scheduled, exact=exact)
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
