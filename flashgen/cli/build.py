"""`flashgen build`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from flashgen.choices import PRESETS, check_choice
from flashgen.cli.failure import for_each, guarded
from flashgen.cli.options import DEFAULT_OUT, Json, Out, Preset, Specs
from flashgen.cli.output import Output, tile_text
from flashgen.cli.specs import Packages
from flashgen.errors import CheckFailed, VerificationFailed
from flashgen.gallery import resolve

if TYPE_CHECKING:
    from flashgen.api import Built
    from flashgen.compiling import Job


@guarded
def build(
    specs: Specs,
    out: Out = DEFAULT_OUT,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target", metavar="TARGET", help="Compile for this GPU, for example sm_80 or gfx942; repeatable."
        ),
    ] = None,
    preset: Preset = "default",
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Prove the kernel.")] = True,
    tune: Annotated[bool, typer.Option("--tune/--no-tune", help="Tune, where there is a GPU.")] = True,
    compile: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Compile for targets, where there is no GPU.")
    ] = True,
    json: Json = False,
) -> None:
    """Render, prove and tune specs. Without a GPU they are compiled for the targets instead of being tuned."""
    from flashgen.api import Built, Steps, construct

    check_choice("--preset", preset, PRESETS)
    output = Output.choose(json)

    steps = Steps(target, verify, compile, tune, preset)
    packages = Packages(out, output)

    def one(spec: str) -> None:
        packages.read(spec)
        try:
            with output.progress() as progress:
                built = construct(resolve(spec), out, steps, progress)
        except CheckFailed as error:
            assert isinstance(error.found, Built)
            if not isinstance(error, VerificationFailed):  # which says of itself what was verified
                show_steps(error.found, output)
            output.document(document(error.found))
            raise
        show(built, output, wanted_tuning=tune)
        output.document(document(built))

    for_each(specs, one)


def show_steps(built: Built, output: Output) -> None:
    """What was rendered, proven and compiled, for people."""
    name = built.variant.name
    output.line(f"{name}: {built.path}", style="bold")
    if built.verification is not None:
        output.line(f"verified: {built.verification}")
        if built.verification.note:
            output.line(f"note: {built.verification.note}")
    if built.compiled:
        output.line("compiled in the default config, not run:")
        jobs = [(c.job, [config_text(c.job), c.registers, c.spills, c.shared]) for c in built.compiled]
        output.table(
            ["target", "kernel", "dtype", "head_dim", "config", "registers", "spilled B", "shared B"],
            [[job.target, job.kernel, job.dtype, job.head_dim, *found] for job, found in jobs],
        )
    for job in (one.job for one in built.compiled if one.serialized_wgmma):
        what = f"{job.target} {job.kernel} {job.dtype} head_dim {job.head_dim}"
        output.line(f"{what}: the assembler serialized WGMMA (C7512), which costs speed", style="yellow")


def config_text(job: Job) -> str:
    """In which tiles a kernel was compiled: those of the kernel that it makes ready for, if that is what it does."""
    return f"that of {job.ready_for}" if job.ready_for else tile_text(job.config)


def show(built: Built, output: Output, wanted_tuning: bool) -> None:
    """What was done, for people."""
    show_steps(built, output)
    for outcome in built.tuned:
        output.line(f"tuned: {outcome}")
    if wanted_tuning and built.gpu is None:
        output.line(
            f"nothing was tuned: no GPU was found. On a machine with the GPU run `{tuning(built)}`; until then the "
            "built-in default config is used."
        )
    output.line(f"done in {built.seconds:.1f} s", style="dim")


def tuning(built: Built) -> str:
    """The command that tunes what was built, in its place."""
    out = built.path.parent
    named = [] if out == DEFAULT_OUT else ["--out", str(out)]
    return shlex.join(["flashgen", "tune", built.variant.source, *named])


def document(built: Built) -> dict[str, object]:
    """What was done, for machines."""
    report = built.verification
    return {
        "name": built.variant.name,
        "path": built.path,
        "gpu": built.gpu,
        "warnings": built.variant.warnings,
        "verification": None if report is None else report.as_dict(),
        "compiled": built.compiled,
        "tuned": built.tuned,
        "seconds": round(built.seconds, 3),
    }
