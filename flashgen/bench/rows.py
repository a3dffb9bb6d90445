"""Benchmark results: one row for each candidate of a case, kept as JSON lines that a later run can resume."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from flashgen.files import append_lines, lines_of
from flashgen.problems.problem import Problem


@dataclass(frozen=True)
class Case:
    """What is measured, and with what: rows of equal cases are comparable. `step` is one of `passes.PASSES`."""

    variant: str
    spec: str
    templates: str
    problem: Problem
    gpu: str
    torch: str
    triton: str
    step: str = "forward"

    @property
    def key(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True)
class Row:
    """One candidate's result. Times in milliseconds, memory in MiB, None where nothing was measured; `note` says why.

    `density` is the share of (query, key) pairs that are visible; TFLOP/s count those alone. `ceiling` is what an
    8192 x 8192 x 8192 matrix product in the same dtype reached in the same rounds, `share` the part of it reached.
    """

    case: Case
    candidate: str
    density: float
    median_ms: float | None = None
    spread: float | None = None
    tflops: float | None = None
    ceiling: float | None = None
    share: float | None = None
    peak_mib: float | None = None
    note: str = ""


def write(path: Path, rows: Iterable[Row]) -> None:
    """Append rows in one write, so that an interrupted run leaves whole cases."""
    append_lines(path, [json.dumps(asdict(row), allow_nan=False) for row in rows])


def read(path: Path) -> list[Row]:
    """The rows of a file; a last line that an interruption cut short, or a line of another layout, is left out."""
    rows = (_parse(line) for line in lines_of(path))
    return [row for row in rows if row is not None]


def first_of_each(rows: Iterable[Row]) -> list[Row]:
    """Each candidate of a case once, as it was first measured: groups that are timed apart may share some."""
    first: dict[tuple[Case, str], Row] = {}
    for row in rows:
        first.setdefault((row.case, row.candidate), row)
    return list(first.values())


def _parse(line: str) -> Row | None:
    try:
        data = json.loads(line)
        case = data["case"]
        case["problem"] = Problem(**case["problem"])
        data["case"] = Case(**case)
        row = Row(**data)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return row if set(data) == {field.name for field in fields(Row)} else None
