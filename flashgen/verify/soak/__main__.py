"""Random specs held against an evaluation that shares no code with the compiler.

    python -m flashgen.verify.soak --seed S --count N [--device cpu|cuda] [--seconds T] [--jobs J] [--rows FILE] ...

Each case is a spec, sizes, tensors, configs and options drawn from the seed and its index alone. It is built and
called in a process beside this one; out, lse, gradients, the schedule and the module's reference are compared. Once
all are tried, what failed is made small and printed as YAML, with the command that repeats it. Exit status 0 where all
passed, 1 where one failed or was left when the time was up, 2 where the command is wrong or there is no GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from flashgen.choices import at_least
from flashgen.ending import in_order, reporting
from flashgen.errors import EnvironmentProblem, UsageError
from flashgen.files import check_target
from flashgen.verify.soak.case import from_yaml, to_yaml
from flashgen.verify.soak.crew import Soak, Trier, default_jobs, nursery
from flashgen.verify.soak.draw import draw
from flashgen.verify.soak.rows import Row, append, read, source_digest, table

# Seconds for one case, compilation included.
LIMITS = {"cpu": 180.0, "cuda": 300.0}
# Trials to make a failing case small; on a GPU each compiles kernels.
STEPS = {"cpu": 150, "cuda": 12}
# Seconds between two lines that say how far it has got.
PROGRESS = 20.0


@reporting
def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    device = chosen.device or ("cuda" if _has_gpu() else "cpu")
    if device == "cuda" and not chosen.show and not _has_gpu():
        raise EnvironmentProblem("there is no GPU that torch can use: `flashgen doctor` says what is missing")
    if chosen.resume and chosen.rows is None:
        raise UsageError("--resume was given without --rows; expected the file to resume from")
    if chosen.rows is not None:
        check_target(chosen.rows)
    if chosen.case is not None:
        return _replayed(chosen.case, device, chosen.limit or LIMITS[device])
    indices = chosen.index or range(chosen.start, chosen.start + chosen.count)
    if chosen.show:
        cases = (draw(chosen.seed, index, chosen.voids, large=device == "cuda") for index in indices)
        print("\n".join(map(to_yaml, cases)))
        return 0
    steps = STEPS[device] if chosen.steps is None else chosen.steps
    soak = Soak(chosen.seed, device, chosen.jobs, chosen.limit or LIMITS[device], steps)
    return _run(soak, indices, chosen.seconds, chosen.rows, read(chosen.rows) if chosen.resume else [])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m flashgen.verify.soak", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="decides every case, with its index")
    parser.add_argument("--count", type=at_least(0), default=100, metavar="N", help="how many cases")
    parser.add_argument("--start", type=at_least(0), default=0, metavar="I", help="index of the first")
    parser.add_argument("--index", type=at_least(0), action="append", metavar="I", help="only this case; repeatable")
    parser.add_argument("--case", type=Path, metavar="FILE", help="try a case that was printed, nothing else")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="cpu: Triton's interpreter; a GPU where there is one")
    parser.add_argument("--jobs", type=at_least(1), default=default_jobs(), metavar="J", help="cases side by side")
    parser.add_argument("--seconds", type=float, metavar="T", help="start no further case after this time")
    parser.add_argument("--limit", type=float, metavar="T", help="time limit of each case")
    parser.add_argument("--steps", type=at_least(0), metavar="N", help="trials to make a failure small")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="append what is found to this file, as JSON lines")
    parser.add_argument("--resume", action="store_true", help="skip what passed according to the rows file")
    parser.add_argument("--show", action="store_true", help="print the cases, try none")
    parser.add_argument(
        "--voids", type=at_least(0), default=0, metavar="N", help="with --show: as drawn after so many void ones"
    )
    return parser


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _run(soak: Soak, indices: Iterable[int], seconds: float | None, path: Path | None, known: Sequence[Row]) -> int:
    """Try all indices that did not pass before, on this very code; the exit status."""
    start = time.monotonic()
    end = start + (seconds or float("inf"))
    source = source_digest()
    passed = {
        r.index: r for r in known if r.passed and (r.seed, r.device, r.source) == (soak.seed, soak.device, source)
    }
    rows = [passed[index] for index in indices if index in passed]
    wanted = [index for index in indices if index not in passed]
    known_before = len(rows)
    try:
        for row in _told(soak.of(wanted, lambda: time.monotonic() > end), len(wanted), path):
            if row is not None:
                rows.append(row)
    except KeyboardInterrupt:
        # What was found is told all the same, as large as it is.
        soak = replace(soak, steps=0)
    left = len(wanted) - (len(rows) - known_before)
    for row in soak.made_small([row for row in rows if not row.passed], lambda: time.monotonic() > end):
        if path is not None:
            append(path, row)
        _show(row)
    print()
    print("\n".join(table(rows, time.monotonic() - start, left)), flush=True)
    return 0 if not left and all(row.passed for row in rows) else 1


def _told(rows: Iterable[Row | None], count: int, path: Path | None) -> Iterator[Row | None]:
    """The rows as they come, written to the file; every now and then a line says how many there are."""
    start = said = time.monotonic()
    done = failed = 0
    for row in rows:
        if row is not None:
            done, failed = done + 1, failed + (not row.passed)
            if path is not None:
                append(path, row)
        if time.monotonic() - said > PROGRESS:
            said = time.monotonic()
            print(f"{done} of {count} cases, {failed} failed, {said - start:.0f} s", flush=True)
        yield row


def _show(row: Row) -> None:
    print(f"FAILED  {row.kind}: {row.detail}\n")
    print(row.small)
    print(f"# python -m flashgen.verify.soak --device {row.device} --seed {row.seed} --index {row.index}\n", flush=True)


def _replayed(path: Path, device: str, limit: float) -> int:
    try:
        case = from_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no case ({error}); expected what a soak printed") from error
    mother = nursery(device)
    trier = Trier(device, limit, mother)
    found = trier(case, lenient=True)
    trier.close()
    mother.close()
    print(f"{found['kind']}: {found['detail']}")
    return 0 if found["kind"] == "passed" else 1


if __name__ == "__main__":
    sys.exit(in_order(main))
