"""`flashgen bench`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flashgen.cli.failure import for_each, guarded
from flashgen.cli.kernels import TRAINED
from flashgen.cli.options import DEFAULT_OUT, Json, Out, Specs, path_option
from flashgen.cli.output import Output
from flashgen.cli.shapes import Dtypes, Modes, Shapes, chosen_dtypes, chosen_modes, chosen_shapes
from flashgen.cli.specs import Packages
from flashgen.errors import UsageError
from flashgen.files import check_target

if TYPE_CHECKING:
    from flashgen.bench import Session
    from flashgen.bench.rows import Row
    from flashgen.bench.serving_rows import ServingRow
    from flashgen.spec.variant import TuneShape

COLUMNS = ("variant", "problem", "pass", "candidate", "ms", "±%", "TFLOP/s", "ceiling", "share", "peak MiB", "")

SERVING_COLUMNS = ("variant", "problem", "candidate", "us", "±%", "GB/s", "of the copy", "")


@guarded
def bench(
    specs: Specs,
    shape: Shapes = None,
    dtype: Dtypes = None,
    mode: Modes = None,
    candidate: Annotated[
        list[str] | None, typer.Option("--candidate", metavar="NAME", help="Only these candidates; repeatable.")
    ] = None,
    passes: Annotated[
        list[str] | None,
        typer.Option(
            "--pass",
            metavar="PASS",
            help="forward, backward or forward+backward; repeatable. By default forward, with --mode varlen both.",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Interleaved rounds of measurement.")] = 15,
    rows_file: Annotated[
        Path | None, path_option("--rows", metavar="FILE", help="Append the results to this file, as JSON lines.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Skip what the rows file already has.")] = False,
    seconds: Annotated[
        float | None, typer.Option("--seconds", metavar="S", help="Start no further case after this time.")
    ] = None,
    png: Annotated[Path | None, path_option("--png", metavar="FILE", help="Save the results as a picture.")] = None,
    out: Out = DEFAULT_OUT,
    json: Json = False,
) -> None:
    """Measure generated kernels beside what else computes the variant.

    That is eager PyTorch, torch's flash and cuDNN attention and compiled FlexAttention; with --mode varlen, decode or
    paged what others have for packed sequences, few queries and paged caches.
    """
    check_files(rows_file, resume, png)
    if seconds is not None and not 0 < seconds < math.inf:
        raise UsageError(f"--seconds {seconds}; expected a positive number")
    output = Output.choose(json)
    modes = chosen_modes(mode) or ("dense",)
    shapes, dtypes = chosen_shapes(shape, modes), chosen_dtypes(dtype)
    check_modes(modes, any((candidate, passes, png is not None, seconds is not None)))
    if TRAINED.isdisjoint(modes):
        serving(specs, shapes, dtypes, modes, rounds, rows_file, resume, out, output)
        return
    session = session_of(modes[0], candidate, passes, rounds, seconds, out, rows_file, resume)
    training(specs, shapes, dtypes, modes, session, out, output)
    if session.left:
        output.line(f"{session.left} cases were left when the time limit was reached; --resume takes them up again")
    if png is not None and session.rows:
        from flashgen.bench.picture import draw

        draw(session.rows, png)
        output.line(f"saved {png}")


def check_files(rows_file: Path | None, resume: bool, png: Path | None) -> None:
    """UsageError where nothing could be written there after all has been measured."""
    if resume and rows_file is None:
        raise UsageError("--resume was given without --rows; expected the file to resume from")
    for path, suffix in ((rows_file, ""), (png, ".png")):
        if path is not None:
            check_target(path, suffix)


def check_modes(modes: tuple[str, ...], has_training_options: bool) -> None:
    """UsageError for forms of call that no one table has, and for options that are not those of serving."""
    serves = not TRAINED.issuperset(modes)
    if serves and (has_training_options or not TRAINED.isdisjoint(modes)):
        raise UsageError(
            "--mode decode or paged was given with --mode dense or varlen, --candidate, --pass, --seconds or "
            "--png; expected it without"
        )
    if not serves and len(modes) > 1:
        raise UsageError("--mode dense was given with --mode varlen; expected one of them")


def training(
    specs: list[str], shapes: tuple[TuneShape, ...] | None, dtypes: tuple[str, ...] | None, modes: tuple[str, ...],
    session: Session, out: Path, output: Output,
) -> None:  # fmt: skip
    """Calls that have gradients, a table a case."""
    from flashgen.tuning.workloads import problems

    packages = Packages(out, output)

    def one(spec: str) -> None:
        variant = packages.read(spec)
        for rows in session.run(variant, problems(variant, shapes, dtypes, modes)):
            show(rows, output)

    for_each(specs, one)


def session_of(
    mode: str, candidates: list[str] | None, passes: list[str] | None, rounds: int, seconds: float | None, out: Path,
    rows_file: Path | None, resume: bool,
) -> Session:  # fmt: skip
    """What measures calls that have gradients, of dense or of packed sequences."""
    from flashgen.bench import Bench, Session
    from flashgen.bench.packed import PACKED_CANDIDATES, measure_packed
    from flashgen.bench.passes import BACKWARD, FORWARD

    if mode == "dense":
        return Session(Bench.choose(candidates, passes, rounds, seconds), out, rows_file, resume)
    chosen = Bench.choose(candidates, passes or (FORWARD, BACKWARD), rounds, seconds, PACKED_CANDIDATES)
    return Session(chosen, out, rows_file, resume, measure_packed)


def serving(
    specs: list[str], shapes: tuple[TuneShape, ...] | None, dtypes: tuple[str, ...] | None, modes: tuple[str, ...],
    rounds: int, rows_file: Path | None, resume: bool, out: Path, output: Output,
) -> None:  # fmt: skip
    """Few queries and paged caches, a table a problem."""
    from flashgen.bench.run import machine
    from flashgen.bench.serving_rows import ServingRows, run
    from flashgen.codegen import generate, load_module
    from flashgen.tuning.workloads import problems

    machine()  # Without a GPU nothing is rendered either.
    file = ServingRows(rows_file, resume)

    packages = Packages(out, output)

    def one(spec: str) -> None:
        variant = packages.read(spec)
        module = load_module(generate(variant, out))
        for rows in run(variant, module, problems(variant, shapes, dtypes, modes), rounds, file):
            for row in rows:
                output.document(row)
            output.table(SERVING_COLUMNS, [serving_cells(row) for row in rows])

    for_each(specs, one)


def serving_cells(row: ServingRow) -> list[str | None]:
    """A row as the table shows it."""
    numbers = ((row.median_us, 1, 1), (row.spread, 1, 100), (row.gbs, 0, 1), (row.share, 3, 1))
    shown = [None if value is None else f"{value * scale:.{digits}f}" for value, digits, scale in numbers]
    return [row.variant, row.problem, row.candidate, *shown, row.note]


def show(rows: list[Row], output: Output) -> None:
    """The rows of one case."""
    for row in rows:
        output.document(row)
    output.table(COLUMNS, [cells(row) for row in rows])


def cells(row: Row) -> list[str | None]:
    def number(value: float | None, digits: int, scale: float = 1.0) -> str | None:
        return None if value is None else f"{value * scale:.{digits}f}"

    return [
        row.case.variant,
        str(row.case.problem),
        row.case.step,
        row.candidate,
        number(row.median_ms, 3),
        number(row.spread, 1, 100),
        number(row.tflops, 0),
        number(row.ceiling, 0),
        number(row.share, 2),
        number(row.peak_mib, 0),
        row.note,
    ]
