"""The benchmark of serving, in the interpreter with a pretended clock: who is measured, and what is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from gallery import VARIANTS

from flashgen.bench import serving_rows
from flashgen.bench.serving_peers import PEERS
from flashgen.bench.serving_rows import ServingRow, ServingRows, measure
from flashgen.problems.problem import Problem
from flashgen.spec.variant import Variant

CAUSAL = VARIANTS["causal"]
DECODE = Problem(1, 4, 2, 1, 600, 16, 16, "float32", "decode")
PAGED = Problem(2, 4, 2, 1, 100, 16, 16, "float32", "paged", 16)


@pytest.mark.parametrize("problem", [DECODE, PAGED], ids=str)
def test_each_candidate_has_a_row_or_says_why_not(
    gallery_module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, problem: Problem
) -> None:
    called = []

    def timer(run: Callable[[], object]) -> float:
        called.append(run())
        return 10.0

    def prepare(run: Callable[[], object]) -> Callable[[], object]:
        run()
        return run

    # FlexAttention would be compiled.
    monkeypatch.setitem(PEERS["decode"], "FlexAttention", lambda *_: lambda: None)
    rows = measure(CAUSAL, gallery_module("causal"), problem, 2, "cpu", prepare, timer)
    found = {row.candidate: row for row in rows}
    assert set(found) == {"flashgen", "device copy", *PEERS[problem.mode]}
    assert found["flashgen"].share == 1.0
    assert found["flashgen"].gbs == pytest.approx(serving_rows.least_bytes(problem, "decode") / 1e4)
    missing = [row for row in rows if row.median_us is None]
    assert missing and all(row.note for row in missing)
    assert len(called) == 2 * (len(rows) - len(missing))


def test_what_a_file_has_is_not_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    row = ServingRow("causal", "paged", str(PAGED), "flashgen", 10.0, 0.1, 20.0, 0.9)
    ServingRows(path, False).add([row])
    assert ServingRows(path, True).known(CAUSAL, PAGED) == [row]
    assert ServingRows(path, True).known(CAUSAL, DECODE) == ServingRows(path, False).known(CAUSAL, PAGED) == []


def test_rows_of_other_kernels_or_another_machine_are_measured_again(
    gallery_module: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, measured, here = gallery_module("causal"), [], ["GPU", "torch", "triton"]

    def measure(variant: Variant, module: ModuleType, problem: Problem, rounds: int) -> list[ServingRow]:
        measured.append(problem)
        return [ServingRow(variant.name, problem.mode, str(problem), "flashgen", 10.0)]

    def run(module: ModuleType) -> int:
        (rows,) = serving_rows.run(CAUSAL, module, [PAGED], 2, ServingRows(tmp_path / "rows.jsonl", True))
        assert [row.candidate for row in rows] == ["flashgen"]
        return len(measured)

    monkeypatch.setattr(serving_rows, "measure", measure)
    monkeypatch.setattr(serving_rows, "machine", lambda: here)
    assert (run(module), run(module)) == (1, 1)
    changed = ModuleType("changed")
    changed.IDENTITY = replace(module.IDENTITY, templates={**module.IDENTITY.templates, "decode_paged": "changed"})
    assert (run(changed), run(changed)) == (2, 2)
    here[0] = "another GPU"
    assert (run(changed), run(module)) == (3, 4)


@pytest.mark.parametrize("last", ['{"variant": "cau', "\xff\xfe", "[" * 100000])
def test_what_comes_after_a_line_that_was_cut_short_is_whole(tmp_path: Path, last: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(last.encode("latin-1"))
    row = ServingRow("causal", "paged", str(PAGED), "flashgen", 10.0, 0.1, 20.0, 0.9)
    ServingRows(path, True).add([row])
    assert ServingRows(path, True).known(CAUSAL, PAGED) == [row]


def test_a_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    row = ServingRow("causal", "paged", str(PAGED), "flashgen", 10.0, 0.1, 20.0, 0.9)
    ServingRows(path, False).add([row])
    whole = path.read_text()
    path.write_text(f'{whole}{{"of": "another layout"}}\n[1]\n{whole[:30]}')
    assert ServingRows(path, True).known(CAUSAL, PAGED) == [row]
