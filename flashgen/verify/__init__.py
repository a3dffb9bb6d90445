"""Proof that generated kernels compute their formula and its gradients.

Fresh inputs, poisoned outputs, and a budget derived from both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from flashgen.choices import LEVELS, check_choice
from flashgen.codegen import load_module, uses_schedule
from flashgen.codegen.rehearsal import Wanted
from flashgen.errors import VerificationFailed
from flashgen.runtime import Config
from flashgen.runtime.lookup import current_device
from flashgen.spec.variant import Variant
from flashgen.verify.case import Case
from flashgen.verify.cases import cases_for, gradient_cases_for
from flashgen.verify.configs import rehearse_config, rehearse_proof, verify_config
from flashgen.verify.isolated import run_isolated
from flashgen.verify.paged_cases import PagedCase, paged_cases_for
from flashgen.verify.report import CaseResult, Report
from flashgen.verify.run import rehearse, run_case, run_cases

__all__ = [
    "Case",
    "CaseResult",
    "PagedCase",
    "Report",
    "cases_for",
    "gradient_cases_for",
    "paged_cases_for",
    "rehearse_config",
    "rehearse_proof",
    "run_case",
    "run_cases",
    "verify",
    "verify_config",
]

# Given the kernels that each case needs, gives something for each case once these are compiled.
Ahead = Callable[[Iterable[Sequence[Wanted]]], Iterable[object]]

DEFAULT_SECONDS = {"quick": 120.0, "full": 900.0}


def verify(
    module_path: Path,
    variant: Variant,
    *,
    level: str = "quick",
    configs: Sequence[Config] | None = None,
    device: str | None = None,
    seconds: float | None = None,
    ahead: Ahead | None = None,
) -> Report:
    """Prove the generated module at `module_path` on the cases of a level, "quick" or "full".

    On `device` "cuda..." in this process; on "cpu" under Triton's interpreter in a child process. None takes the
    GPU if there is one. `configs` runs every case of the outputs under each of these instead of its own, and leaves
    out gradients and paged caches. On a GPU `ahead` is given what each case has to compile, and gives something for
    each when that is in Triton's cache, where the case finds it. The report says which cases failed; an interpreter
    that dies or hangs raises VerificationFailed.
    """
    check_choice("level", level, LEVELS)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    gpu = device.startswith("cuda")
    dense, cases = cases_for(variant, level, gpu, uses_schedule(variant)), list[Case | PagedCase]()
    if configs is None:
        capability = current_device(torch.device(device).index or 0).capability if gpu else ""
        cases += [*dense, *gradient_cases_for(variant, level, gpu, uses_schedule(variant))]
        cases += paged_cases_for(variant, level, capability)
    else:
        cases += [replace(case, name=f"{case.name}, {config}", config=config) for case in dense for config in configs]
    if not cases:
        raise VerificationFailed(
            f"{module_path} is not proven: in each case of level {level!r} some input has no element; expected "
            "dimensions that come to 1 or more where there are a hundred queries and keys"
        )
    limit = DEFAULT_SECONDS[level] if seconds is None else seconds
    if not gpu:
        return run_isolated(Path(module_path), variant, cases, level=level, seconds=limit)
    module = load_module(Path(module_path))
    ready = () if ahead is None else ahead(rehearse(module, variant, cases, device))
    return run_cases(module, variant, cases, level=level, device=device, seconds=limit, ready=ready)
