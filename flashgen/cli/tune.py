"""`flashgen tune`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flashgen.choices import PRESETS, check_choice
from flashgen.cli.failure import for_each, guarded
from flashgen.cli.kernels import KERNEL_CHOICES, KernelChoice, check_kernels, chosen_kernels
from flashgen.cli.options import DEFAULT_OUT, Json, Out, Preset, Specs, path_option, seed_option
from flashgen.cli.output import Output, tile_text
from flashgen.cli.saving import Saved
from flashgen.cli.shapes import Dtypes, Modes, Shapes, chosen_dtypes, chosen_modes, chosen_shapes
from flashgen.cli.specs import Packages
from flashgen.errors import UsageError
from flashgen.files import check_folder
from flashgen.printable import in_short
from flashgen.spec.modes import shapes_of

if TYPE_CHECKING:
    from flashgen.spec.variant import Variant
    from flashgen.tuning.outcome import Outcome
    from flashgen.tuning.workloads import Workload

# Of an index: Python refuses to read some thousands.
MOST_DIGITS = 9

Exhaustive = Annotated[
    bool, typer.Option("--exhaustive", help="Time the whole space, also what compilation judges hopeless.")
]
Gpus = Annotated[
    str, typer.Option("--gpus", metavar="LIST", help="The GPUs that share the work: 0,1,... or all; of one model.")
]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage", metavar="URL", help="A database in which several hosts share the studies: postgresql://..."
    ),
]
Table = Annotated[
    Path | None,
    path_option(
        "--table",
        metavar="FOLDER",
        help="Save all that was measured as JSON, a file for each kernel and shape.",
    ),
]
Seed = Annotated[int, seed_option("Draws the order of proposals and rounds.")]
Report = Annotated[
    Path | None,
    path_option(
        "--report",
        metavar="FOLDER",
        help="Save pictures: history, space, spread, roofline; four for each kernel and shape.",
    ),
]


@guarded
def tune(
    specs: Specs,
    shape: Shapes = None,
    dtype: Dtypes = None,
    mode: Modes = None,
    kernel: KernelChoice = "all",
    preset: Preset = "default",
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="Measure at most so many configs for each kernel and shape.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--budget-seconds",
            metavar="S",
            help="Search for this time, over all shapes of a spec; six configs of each are tried in any case.",
        ),
    ] = None,
    exhaustive: Exhaustive = False,
    gpus: Gpus = "0",
    storage: Storage = None,
    force: Annotated[bool, typer.Option("--force", help="Search also where there is a record.")] = False,
    seed: Seed = 0,
    table: Table = None,
    report: Report = None,
    out: Out = DEFAULT_OUT,
    json: Json = False,
) -> None:
    """Find and record the best configs on the GPUs at hand. What has a record is skipped."""
    check_choice("--preset", preset, PRESETS)
    check_choice("--kernel", kernel, KERNEL_CHOICES)
    if seconds is not None and not 0 < seconds < math.inf:
        raise UsageError(f"--budget-seconds {seconds}; expected a positive number")
    for folder in (table, report):
        if folder is not None:
            check_folder(folder, writable=True)  # Not only after the search.
    output = Output.choose(json)
    indices, modes = chosen_gpus(gpus), chosen_modes(mode)
    shapes = chosen_shapes(shape, modes)
    options = {
        "shapes": shapes,
        "modes": modes,
        "dtypes": chosen_dtypes(dtype),
        "preset": preset,
        "trials": trials,
        "budget_seconds": seconds,
        "exhaustive": exhaustive,
        "storage": storage,
        "force": force,
        "seed": seed,
    }

    packages = Packages(out, output)

    def one(spec: str) -> None:
        variant = packages.read(spec)
        check_kernels(kernel, shapes or shapes_of(variant, modes))
        search_and_show(variant, out, indices, kernel, output, options, Saved(table, report))

    for_each(specs, one)


def search_and_show(
    variant: Variant, out: Path, gpus: list[int] | None, kernel: str, output: Output, options: Mapping[str, Any],
    saved: Saved,
) -> None:  # fmt: skip
    """Tune a variant, and show and save what came of it, also of what was done before an error: it took its time."""
    outcomes: dict[Workload, Outcome] = {}

    def done(outcome: Outcome) -> None:
        outcomes[outcome.workload] = outcome
        saved.measurements(outcome)

    try:
        search(variant, out, gpus, kernel, output, {**options, "done": done})
    finally:
        for outcome in outcomes.values():
            output.line(f"{variant.name}: {outcome}")
            show_ranking(outcome, output)
            output.document(outcome)
            saved.pictures(outcome)
        saved.tell(output)
    saved.check()


def search(
    variant: Variant, out: Path, gpus: list[int] | None, kernel: str, output: Output, options: Mapping[str, Any]
) -> None:
    """Render a variant and tune it with these options of `tune`, showing where the search stands."""
    from flashgen.tuning.crew import Crew

    path = variant.module_in(out)
    with Crew(variant, path, gpus) as crew, output.progress() as progress:
        # What imports torch comes after the compilers' processes, which import it too.
        from flashgen.codegen import generate
        from flashgen.tuning.tune import tune

        generate(variant, out)
        tune(
            variant,
            path,
            crew=crew,
            gpus=gpus,
            kernels=chosen_kernels(kernel),
            progress=lambda state: progress(str(state), passing=True),
            **options,
        )


def chosen_gpus(text: str) -> list[int] | None:
    """The indices of GPUs, None for all of them."""
    if text == "all":
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) <= MOST_DIGITS for part in parts):
        raise UsageError(f"--gpus {in_short(text, 100)!r}; expected indices such as 0,1 or all")
    return [int(part) for part in parts]


def show_ranking(outcome: Outcome, output: Output) -> None:
    """The finalists, the fastest first; nothing for a workload whose record was there."""
    from flashgen.tuning.clocks import throttling
    from flashgen.tuning.outcome import timed

    finalists = timed(outcome.ranking)
    if not finalists:
        return
    work, best_us = outcome.work, finalists[0][1].median_us
    rows = []
    for entry, timing in finalists:
        us = timing.median_us
        speed = [f"{work.tflops(us):.0f}", f"{work.share(us):.0%}"] if work else [None, None]
        shared = None if entry.shared is None else f"{entry.shared / 1024:.0f}"
        times = [f"{us:.1f}", f"{timing.spread:.1%}", f"{best_us / us:.1%}"]
        rows.append([tile_text(entry.config), *times, entry.registers, shared, *speed])
    held_back = throttling(outcome.record.clocks) if outcome.record else ""
    if held_back:
        output.line(f"throttled: {held_back}; times are longer than on a cool, unlimited GPU", style="yellow")
    columns = ["config", "us", "spread", "of best", "registers", "shared KiB", "TFLOP/s", "of matrix product"]
    output.table(columns, rows)
