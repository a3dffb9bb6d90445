"""`flashgen tune`."""

from __future__ import annotations

from typing import Annotated

import typer

from flashgen.cli.failure import for_each, guarded
from flashgen.cli.options import DEFAULT_OUT, Json, Out, Preset, Specs
from flashgen.cli.output import Output
from flashgen.cli.shapes import Dtypes, Shapes, chosen_dtypes, chosen_shapes
from flashgen.cli.specs import resolve


@guarded
def tune(
    specs: Specs,
    shape: Shapes = None,
    dtype: Dtypes = None,
    preset: Preset = "default",
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="Measure at most so many configs.")] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", metavar="S", help="Search for at most this time, over all shapes.")
    ] = None,
    device: Annotated[int, typer.Option("--device", min=0, help="The index of the GPU.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Search also where there is a record.")] = False,
    out: Out = DEFAULT_OUT,
    json: Json = False,
) -> None:
    """Find and record the best configs on the GPU at hand; what has a record is skipped."""
    from flashgen.codegen import generate
    from flashgen.spec import load
    from flashgen.tuning.tune import tune as tune_variant

    output = Output.choose(json)

    def one(spec: str) -> None:
        variant = load(resolve(spec))
        with output.progress() as progress:
            outcomes = tune_variant(
                variant,
                generate(variant, out),
                shapes=chosen_shapes(shape),
                dtypes=chosen_dtypes(dtype),
                trials=trials,
                budget_seconds=seconds,
                preset=preset,
                device=device,
                force=force,
                progress=lambda state: progress(str(state), passing=True),
            )
        for outcome in outcomes:
            output.line(f"{variant.name}: {outcome}")
            output.document(outcome)

    for_each(specs, one)
