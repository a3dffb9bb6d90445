"""`flashgen verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flashgen.choices import LEVELS, check_choice
from flashgen.cli.failure import for_each, guarded
from flashgen.cli.options import DEFAULT_OUT, Json, Out, Specs
from flashgen.cli.output import Output
from flashgen.cli.specs import Packages
from flashgen.errors import VerificationFailed

if TYPE_CHECKING:
    from flashgen.spec.variant import Variant
    from flashgen.verify import Report


@guarded
def verify(
    specs: Specs,
    out: Out = DEFAULT_OUT,
    level: Annotated[str, typer.Option("--level", help="How many cases: quick or full.")] = "full",
    json: Json = False,
) -> None:
    """Prove the kernels against the eager reference. They run on the GPU, or without one under Triton's interpreter."""
    check_choice("--level", level, LEVELS)
    output = Output.choose(json)

    packages = Packages(out, output)

    def one(spec: str) -> None:
        variant = packages.read(spec)
        path = variant.module_in(out)
        try:
            report = prove(variant, out, level, output)
        except VerificationFailed as error:
            from flashgen.verify import Report

            if isinstance(error.found, Report):
                output.document(document(variant, path, error.found))
            raise
        for case in report.cases:
            output.line(f"  {case}")
        output.line(f"{variant.name}: {report}", style="green")
        if report.note:
            output.line(f"note: {report.note}")
        output.document(document(variant, path, report))

    for_each(specs, one)


def prove(variant: Variant, out: Path, level: str, output: Output) -> Report:
    """Render a variant and prove it; VerificationFailed, and what was rendered goes again, where it does not pass."""
    from flashgen.api import examine, expect_proven, gpu_name
    from flashgen.tuning.pool import compilers

    path = variant.module_in(out)
    with compilers(variant, path) as pool, output.progress() as progress:
        # What imports torch comes after the compilers' processes, which import it too.
        from flashgen.codegen import on_trial

        with on_trial(variant, out):
            pool.fork()
            report = examine(variant, path, gpu_name(), level, progress, pool.answers_each)
            expect_proven(path, report)
    return report


def document(variant: Variant, path: Path, report: Report) -> dict[str, object]:
    """What was found, for machines; `path` is where the package was proven."""
    return {"name": variant.name, "path": path, "warnings": variant.warnings, **report.as_dict()}
