"""The benchmark without a GPU: the order of timing, rows, what is asked for, and the picture."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flashgen.bench import Bench
from flashgen.bench.candidates import CANDIDATES
from flashgen.bench.passes import BACKWARD, FORWARD
from flashgen.bench.picture import draw
from flashgen.bench.rows import Case, Row, read, write
from flashgen.bench.run import CEILING, CEILING_SIZE, rows
from flashgen.bench.timing import Run, interleave
from flashgen.errors import UsageError
from flashgen.problems.problem import Problem
from flashgen.problems.work import useful_flops
from flashgen.tuning.timing import Timing

PROBLEM = Problem(2, 4, 2, 48, 64, 16, 16, "float32")
CASE = Case("alibi", "0" * 12, "1" * 12, PROBLEM, "a GPU", "2.0", "3.6")


def test_every_round_times_every_candidate_once_and_in_changing_order() -> None:
    calls: list[str] = []
    candidates: dict[str, Run] = {name: (lambda name=name: calls.append(name)) for name in "abcd"}
    ticks = iter(range(1, 1000))

    def timer(run: Run) -> float:
        run()
        return float(next(ticks))

    timings = interleave(candidates, timer, rounds=20)
    orders = [tuple(calls[i : i + 4]) for i in range(0, 80, 4)]
    assert all(sorted(order) == list("abcd") for order in orders)
    assert len(set(orders)) > 5
    assert all(timing.repetitions == 20 for timing in timings.values())
    # A drift over the run moves all medians alike.
    assert max(t.median_us for t in timings.values()) - min(t.median_us for t in timings.values()) < 20


def test_rows_count_visible_work_alone_and_share_the_ceiling() -> None:
    problem = Problem(2, 16, 16, 1000, 1000, 64, 128, "bfloat16")
    assert useful_flops(problem, 0.5) == 2 * 2 * 16 * 1000 * 1000 * 0.5 * (64 + 128)
    timings = {"flashgen": Timing(100.0, 0.02, 5), CEILING: Timing(2 * CEILING_SIZE**3 / 800e6, 0.0, 5)}
    case = Case("full", "", "", problem, "a GPU", "", "")
    ours, theirs = rows(case, ("flashgen", "eager"), 0.5, timings, {"flashgen": 3 << 20}, {"eager": "too large"})
    assert ours.tflops == pytest.approx(useful_flops(problem, 0.5) / 100e-6 / 1e12)
    assert (ours.ceiling, ours.median_ms, ours.peak_mib) == (pytest.approx(800), pytest.approx(0.1), 3)
    assert ours.share == pytest.approx(ours.tflops / 800)
    assert (theirs.tflops, theirs.note) == (None, "too large")


def test_rows_survive_the_file_and_a_cut_last_line(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    first, second = Row(CASE, "flashgen", 0.5, 1.0, 0.1, 2.0, 3.0, 0.7, 4.0), Row(CASE, "eager", 0.5, note="no")
    write(path, [first])
    write(path, [second])
    path.write_text(path.read_text() + json.dumps({"case": {}}) + "\n" + path.read_text()[:40])
    assert read(path) == [first, second]
    assert read(tmp_path / "none.jsonl") == []


def test_candidates_are_chosen_by_name_and_always_with_the_kernel_itself() -> None:
    assert Bench.choose(None, None, 3, None) == Bench(CANDIDATES, ("forward",), 3)
    assert Bench.choose(["eager"], None, 3, None).candidates == ("flashgen", "eager")
    with pytest.raises(UsageError, match="no candidate 'flash'; expected one of 'flashgen', 'flashgen, no plan', "):
        Bench.choose(["flash"], None, 3, None)
    assert Bench.choose(None, ["backward", "forward"], 3, None).passes == ("backward", "forward")
    both = Bench.choose(["flashgen, deterministic"], ["forward", "backward"], 3, None)
    assert both.candidates_of(FORWARD) == ("flashgen",) and len(both.candidates_of(BACKWARD)) == 2
    with pytest.raises(UsageError, match=r"no pass 'back'; expected one of 'forward', 'backward', 'forward\+backward'"):
        Bench.choose(None, ["back"], 3, None)


def test_the_picture_is_a_png_with_or_without_results(tmp_path: Path) -> None:
    draw([Row(CASE, "flashgen", 0.5, tflops=10.0), Row(CASE, "eager", 0.5, note="no")], tmp_path / "a.png")
    draw([Row(replace(CASE, step=BACKWARD), "eager", 0.5, note="no")], tmp_path / "b.png")
    for name in ("a.png", "b.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
