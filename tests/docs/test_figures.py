"""The tables of speeds say what was measured, as it lies in docs/bench.jsonl."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import pytest

from flashgen.bench.candidates import FLASHGEN
from flashgen.bench.comparisons import ASKED_FOR, GROUPS, Timed, timed_in
from flashgen.bench.rows import Row, read
from flashgen.bench.suite import table

ROOT = Path(__file__).parents[2]
MEASURED = {name: group for name, group in GROUPS.items() if name not in ASKED_FOR}
# A column of README's tables, and whose speed it is.
COLUMNS = {
    "flashgen": FLASHGEN,
    "flashgen, deterministic": "flashgen, deterministic",
    "FlexAttention": "FlexAttention",
    "torch cuDNN": "torch cuDNN",
}


def found() -> dict[str, dict[Timed, Row]]:
    """What was measured of each group: the suite writes one after the other."""
    rows = iter(read(ROOT / "docs/bench.jsonl"))
    by_group = {
        name: {_timed(row): row for row in islice(rows, len(timed_in(group)))} for name, group in MEASURED.items()
    }
    assert next(rows, None) is None
    return by_group


def _timed(row: Row) -> Timed:
    return Timed(row.case.variant, row.case.problem, row.case.step, row.candidate)


def rows_of(text: str) -> list[list[str]]:
    """The cells of every line of a table but the rule below its header."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("| ---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_comparisons_are_those_that_the_suite_printed() -> None:
    page = (ROOT / "docs/comparisons.md").read_text(encoding="utf-8").split("## Beside FlashAttention-4")[0]
    header, *lines = rows_of("\n".join(table(MEASURED, found())))
    assert [row for row in rows_of(page) if row != header] == lines


@pytest.mark.parametrize(("page", "passes"), [("README.md", ["forward"]), ("docs/speed.md", ["forward", "backward"])])
def test_tables_of_variants_say_what_was_measured(page: str, passes: list[str]) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    tables = re.findall(r"^\| variant .*(?:\n\|.*)*", text, re.MULTILINE)
    assert len(tables) == len(passes)
    for step, shown in zip(passes, tables, strict=True):
        measured = found()[f"{step}-d128"]
        (_, _, *columns), *lines = rows_of(shown)
        assert {line[0] for line in lines} == {timed.variant for timed in measured}
        for variant, _, *cells in lines:
            assert dict(zip(columns, cells, strict=True)) == expected(variant, measured, columns)
    speeds = [row.tflops for row in found()["forward-d128"].values()]
    ratios = [float(line[-1]) for line in rows_of(tables[0])[1:]]
    (mean,) = re.findall(r"geometric mean of the last column is (\d+\.\d+)", text)
    assert all(speeds) and float(mean) == pytest.approx(math.prod(ratios) ** (1 / len(ratios)), abs=0.006)


def expected(variant: str, measured: Mapping[Timed, Row], columns: list[str]) -> dict[str, str]:
    """The cells of a variant's line; empty where it was not measured."""
    speeds = {timed.candidate: row.tflops for timed, row in measured.items() if timed.variant == variant and row.tflops}
    cells = {column: f"{speeds[COLUMNS[column]]:.0f}" if COLUMNS[column] in speeds else "" for column in columns[:-1]}
    flex = speeds.get("FlexAttention")
    return {**cells, columns[-1]: f"{speeds[FLASHGEN] / flex:.2f}" if flex else ""}


def test_the_matrix_product_is_as_fast_as_said() -> None:
    ceilings = [row.ceiling for rows in found().values() for row in rows.values() if row.ceiling]
    for page in ("README.md", "docs/speed.md"):
        (said,) = re.findall(r"matrix product \(about (\d+) TFLOP/s\)", (ROOT / page).read_text(encoding="utf-8"))
        assert min(ceilings) <= float(said) <= max(ceilings)
