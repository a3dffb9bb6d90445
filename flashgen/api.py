"""From a spec to a rendered, proven, compiled and tuned module: what `flashgen build` and `flashgen.build` do."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from flashgen.choices import PRESETS, check_choice
from flashgen.errors import (
    CheckFailed,
    CompilationFailed,
    EnvironmentProblem,
    SpecWarning,
    UsageError,
    VerificationFailed,
)

if TYPE_CHECKING:
    from flashgen.compiling import Compiled, Job
    from flashgen.spec.variant import Variant
    from flashgen.tuning.crew import Crew
    from flashgen.tuning.outcome import Outcome
    from flashgen.tuning.tune import Tuner
    from flashgen.verify import Ahead, Report

Source = str | os.PathLike[str] | Mapping[str, object]


class Progress(Protocol):
    """Told what is under way: a step, or where a step stands (`passing`), which the next call replaces."""

    def __call__(self, text: str, passing: bool = False) -> None: ...


def silent(text: str, passing: bool = False) -> None:
    """The Progress that tells nobody."""


@dataclass(frozen=True)
class Steps:
    """What a build does beside rendering, as `build` says it.

    Targets that are named are compiled for also where there is a GPU.
    """

    targets: Sequence[str] | None = None
    verify: bool = True
    compile: bool = True
    tune: bool = True
    preset: str = "default"


@dataclass(frozen=True)
class Built:
    """What a build did. `verification` is None, `compiled` and `tuned` are empty where the step was not taken.

    `gpu` is the name of the GPU at hand, None without one.
    """

    variant: Variant
    path: Path
    gpu: str | None = None
    verification: Report | None = None
    compiled: tuple[Compiled, ...] = ()
    tuned: tuple[Outcome, ...] = ()
    seconds: float = 0.0


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

    Renders the package `<out>/<name>`; `verify` proves it against the eager reference, on the GPU or under Triton's
    interpreter; then with a GPU `tune` finds and records the best configs, as many as `preset` ("quick", "default" or
    "full") has time for. `compile` compiles the kernels for `targets`, names of `flashgen.runtime.gpus.GPUS`: where
    none are given, for its DEFAULT_TARGETS without a GPU, and for none with one.
    Warns of what may not be meant (SpecWarning). Raises SpecError or UsageError for a wrong spec; VerificationFailed,
    CompilationFailed or TuningFailed where a check fails.
    """
    from flashgen.codegen import load_module
    from flashgen.spec import load

    targets = _named(targets)
    if not isinstance(out, str | os.PathLike) or not os.fspath(out):
        raise UsageError(f"out {out!r}; expected the path of a folder")
    for doubt in load(spec).warnings:
        warnings.warn(doubt, SpecWarning, stacklevel=2)
    return load_module(construct(spec, out, Steps(targets, verify, compile, tune, preset)).path)


def _named(targets: object) -> Sequence[str] | None:
    """The targets of a call; UsageError for one name alone, which is a sequence of letters too."""
    if targets is None:
        return None
    if isinstance(targets, str | bytes) or not isinstance(targets, Iterable):
        raise UsageError(f"targets {targets!r}; expected a list of names")
    return tuple(targets)


def construct(spec: Source, out: str | os.PathLike[str], steps: Steps, progress: Progress = silent) -> Built:
    """`build`, returning what was done.

    Where a check fails, the error has as `found` what was done until then, what failed included.
    """
    from flashgen.spec import load

    start = time.monotonic()
    check_choice("preset", steps.preset, PRESETS)
    variant = load(spec)
    built = Built(variant, variant.module_in(out))
    try:
        for done in _taken(steps, variant, built.path, progress):
            built = replace(built, **done)
    except CheckFailed as error:
        error.found = replace(built, seconds=time.monotonic() - start)
        raise
    return replace(built, seconds=time.monotonic() - start)


def _taken(steps: Steps, variant: Variant, path: Path, progress: Progress) -> Iterator[dict[str, Any]]:
    """Take the steps, and give fields of `Built` as each is done, before it is checked."""
    from flashgen.tuning.crew import Crew

    with ExitStack() as stack:
        # Before torch is imported, which takes as long here as in the processes that this starts.
        crew = (
            stack.enter_context(Crew(variant, path, (0,) if steps.tune else ())) if steps.verify or steps.tune else None
        )
        from flashgen.codegen import generate, on_trial

        if steps.targets:
            # Before anything is written: a wrong target is a wrong input.
            compilation(variant, steps.targets)
        trial = stack.enter_context(ExitStack())
        if steps.verify:
            trial.enter_context(on_trial(variant, path.parent))
        else:
            generate(variant, path.parent)
        if crew is not None:
            crew.compilers.fork()
        progress(f"rendered {path}")
        from flashgen.runtime.gpus import DEFAULT_TARGETS

        gpu = gpu_name() if steps.verify or steps.compile or steps.tune else None
        yield {"gpu": gpu}
        targets = steps.targets or (DEFAULT_TARGETS if gpu is None else ())
        jobs = compilation(variant, targets) if steps.compile and targets else ()
        tuner = None
        if steps.tune and gpu is not None:
            tuner = stack.enter_context(tuner_for(variant, path, steps.preset, crew))

        # What the proof waits for is compiled, and behind it what the searches will ask for.
        meanwhile = (lambda: None) if tuner is None else tuner.prepare
        ahead = None if crew is None else partial(crew.compilers.answers_each, meanwhile=meanwhile)
        if steps.verify:
            report = examine(variant, path, gpu, "quick", progress, ahead)
            yield {"verification": report}
            expect_proven(path, report)
        trial.close()
        compiled = compile_for(variant, path, jobs, progress)
        yield {"compiled": compiled}
        expect_compiled(path, compiled)
        if tuner is not None:
            yield {"tuned": find_configs(tuner, variant, steps.preset, progress)}


def gpu_name() -> str | None:
    """The GPU that torch uses by default, None without one."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def examine(
    variant: Variant, path: Path, gpu: str | None, level: str = "quick", progress: Progress = silent,
    ahead: Ahead | None = None,
) -> Report:  # fmt: skip
    """Verify a rendered module where it can run; VerificationFailed where that came to no end.

    On a GPU `ahead` compiles what its cases need; see `flashgen.verify.verify`.
    """
    from flashgen.verify import verify

    where = gpu or "the CPU (Triton's interpreter)"
    progress(f"verifying {variant.name} on {where}, level {level}")
    return verify(path, variant, level=level, ahead=ahead)


def expect_proven(path: Path, report: Report) -> None:
    """VerificationFailed names the cases that failed, and has the report as `found`."""
    if not report.passed:
        raise VerificationFailed(f"{path} does not compute its formula: {report}", found=report)


def compilation(variant: Variant, targets: Sequence[str]) -> Sequence[Job]:
    """What there is to compile for these targets; UsageError for one that is not known."""
    from flashgen.compiling import jobs_for

    return jobs_for(variant, targets)


def compile_for(
    variant: Variant, path: Path, jobs: Sequence[Job], progress: Progress = silent
) -> tuple[Compiled, ...]:  # fmt: skip
    """Compile a rendered module for each job; EnvironmentProblem where another build's lies there by then."""
    from flashgen.compiling import compile_all

    if not jobs:
        return ()
    progress(f"compiling for {', '.join(dict.fromkeys(job.target for job in jobs))}")
    compiled = compile_all(path, jobs)
    _expect_unchanged(variant, path)
    return compiled


def _expect_unchanged(variant: Variant, path: Path) -> None:
    from flashgen.codegen import identity
    from flashgen.codegen.package_identity import package_identity

    ours, there = identity(variant), package_identity(path)
    if there is None or (there.spec, there.templates) != (ours.spec, ours.templates):
        raise EnvironmentProblem(
            f"{path} was changed while it was being compiled, by another build or by hand; expected it to stay as it "
            "was rendered: build it again"
        )


def expect_compiled(path: Path, compiled: Sequence[Compiled]) -> None:
    """CompilationFailed where one does not compile or does not fit."""
    failed = [one for one in compiled if one.error is not None]
    if failed:
        raise CompilationFailed(f"{path}: {'; '.join(map(str, failed))}; expected every target to compile")


def tuner_for(variant: Variant, path: Path, preset: str, crew: Crew | None) -> Tuner:
    """What will tune a rendered module on the GPU at hand, as far as its records are missing."""
    from flashgen.tuning.presets import chosen
    from flashgen.tuning.tune import Tuner

    return Tuner(variant, path, kernels=chosen(preset).build, preset=preset, crew=crew)


def find_configs(tuner: Tuner, variant: Variant, preset: str, progress: Progress = silent) -> tuple[Outcome, ...]:
    """Tune, and say so."""
    progress(f"tuning {variant.name}, preset {preset}")
    return tuner.run(lambda state: progress(str(state), passing=True))
