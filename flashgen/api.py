"""From a spec to a rendered, proven, compiled and tuned module: what `flashgen build` and `flashgen.build` do."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from flashgen.errors import CompilationFailed, VerificationFailed

if TYPE_CHECKING:
    from flashgen.compiling import Compiled, Job
    from flashgen.spec.variant import Variant
    from flashgen.tuning.outcome import Outcome
    from flashgen.verify import Report

Source = str | os.PathLike[str] | Mapping[str, object]


class Progress(Protocol):
    """Told what is under way: a step, or where a step stands (`passing`), which the next call replaces."""

    def __call__(self, text: str, passing: bool = False) -> None: ...


def silent(text: str, passing: bool = False) -> None:
    """The Progress that tells nobody."""


# What build compiles for where there is no GPU to tune on: one target for each generation in wide use.
DEFAULT_TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")


@dataclass(frozen=True)
class Built:
    """What a build did. `verification` is None, `compiled` and `tuned` are empty where the step was not taken.

    `gpu` is the name of the GPU at hand, None without one.
    """

    variant: Variant
    path: Path
    gpu: str | None
    verification: Report | None
    compiled: tuple[Compiled, ...]
    tuned: tuple[Outcome, ...]
    seconds: float


def build(
    spec: Source,
    *,
    out: str | os.PathLike[str] = "generated",
    targets: Sequence[str] | None = None,
    verify: bool = True,
    compile: bool = True,
    tune: bool = True,
    preset: str = "default",
) -> ModuleType:
    """Build a spec (a path, or its content as a dict) and return the imported module.

    Renders `<out>/<name>.py`; `verify` proves it against the eager reference, on the GPU or under Triton's
    interpreter; then with a GPU `tune` finds and records the best configs, without one `compile` compiles the
    kernels for `targets`. Raises SpecError or UsageError for a wrong spec; VerificationFailed, CompilationFailed or
    TuningFailed where a check fails.
    """
    from flashgen.codegen import load_module

    built = construct(spec, out=out, targets=targets, verify=verify, compile=compile, tune=tune, preset=preset)
    return load_module(built.path)


def construct(
    spec: Source,
    *,
    out: str | os.PathLike[str] = "generated",
    targets: Sequence[str] | None = None,
    verify: bool = True,
    compile: bool = True,
    tune: bool = True,
    preset: str = "default",
    progress: Progress = silent,
) -> Built:
    """`build`, returning what was done. Targets that are named are compiled for also where there is a GPU."""
    from flashgen.codegen import generate
    from flashgen.compiling import jobs_for
    from flashgen.spec import load

    start = time.monotonic()
    variant = load(spec)
    gpu = gpu_name() if verify or compile or tune else None
    # Before anything is written: a wrong target is a wrong input.
    jobs = jobs_for(variant, targets or (DEFAULT_TARGETS if gpu is None else ()))
    path = generate(variant, Path(out))
    progress(f"rendered {path}")
    report = prove(variant, path, gpu, "quick", progress) if verify else None
    compiled = compile_for(path, jobs, progress) if compile else ()
    tuned = find_configs(variant, path, preset, progress) if tune and gpu is not None else ()
    return Built(variant, path, gpu, report, compiled, tuned, time.monotonic() - start)


def gpu_name() -> str | None:
    """The GPU that torch uses by default, None without one."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def prove(variant: Variant, path: Path, gpu: str | None, level: str = "quick", progress: Progress = silent) -> Report:
    """Verify a rendered module where it can run; VerificationFailed names the cases that failed."""
    from flashgen.verify import verify

    where = gpu or "the CPU (Triton's interpreter)"
    progress(f"verifying {variant.name} on {where}, level {level}")
    report = verify(path, variant, level=level)
    if not report.passed:
        raise VerificationFailed(f"{path} does not compute its formula: {report}")
    return report


def compile_for(path: Path, jobs: Sequence[Job], progress: Progress = silent) -> tuple[Compiled, ...]:
    """Compile a rendered module for each job; CompilationFailed where one does not compile or does not fit."""
    from flashgen.compiling import compile_all

    if jobs:
        progress(f"compiling for {', '.join(dict.fromkeys(job.target for job in jobs))}")
    compiled = compile_all(path, jobs)
    failed = [one for one in compiled if one.error is not None]
    if failed:
        raise CompilationFailed(f"{path}: {'; '.join(map(str, failed))}; expected every target to compile")
    return compiled


def find_configs(variant: Variant, path: Path, preset: str, progress: Progress = silent) -> tuple[Outcome, ...]:
    """Tune a rendered module on the GPU at hand, as far as its records are missing."""
    from flashgen.tuning.presets import chosen
    from flashgen.tuning.tune import tune

    progress(f"tuning {variant.name}, preset {preset}")
    kernels = chosen(preset).build
    return tune(
        variant, path, kernels=kernels, preset=preset, progress=lambda state: progress(str(state), passing=True)
    )
