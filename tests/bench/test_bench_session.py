"""A benchmark that goes on where another one stopped, and measures again what changed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import ModuleType

from flashgen.bench import Bench, Session
from flashgen.bench.passes import BACKWARD, FORWARD
from flashgen.bench.rows import Case, Row, read
from flashgen.problems.problem import Problem
from flashgen.spec import load
from flashgen.spec.variant import Variant


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def session(folder: Path, resume: bool, clock: Clock, measured: Counter[str], seconds: float | None = None) -> Session:
    def measure(variant: Variant, module: ModuleType, case: Case, bench: Bench) -> list[Row]:
        measured[str(case.problem) + case.step.replace(FORWARD, "", 1)] += 1
        clock.now += 10
        return [Row(case, name, 1.0) for name in bench.candidates]

    bench = Bench(("flashgen", "eager"), seconds=seconds)
    machine = ("a GPU", "2.0", "3.6")
    return Session(bench, folder, folder / "rows.jsonl", resume, measure, lambda: machine, clock)


def test_a_resumed_session_measures_only_what_the_time_limit_left(tmp_path: Path) -> None:
    variant, measured = load({"name": "plain"}), Counter[str]()
    problems = [Problem(1, 1, 1, n, n, 16, 16, "float32") for n in (16, 32, 48, 64)]
    first = session(tmp_path, False, Clock(), measured, seconds=15)
    assert len(list(first.run(variant, problems))) == 2
    assert first.left == 2
    second = session(tmp_path, True, Clock(), measured)
    assert len(list(second.run(variant, problems))) == 4
    assert second.left == 0
    assert set(measured.values()) == {1}
    assert second.rows == read(tmp_path / "rows.jsonl")


def test_a_case_without_every_candidate_is_measured_again(tmp_path: Path) -> None:
    variant, measured, problem = load({"name": "plain"}), Counter[str](), Problem(1, 1, 1, 16, 16, 16, 16, "float32")
    first = session(tmp_path, False, Clock(), measured)
    first.bench = Bench(("flashgen",))
    list(first.run(variant, [problem]))
    list(session(tmp_path, True, Clock(), measured).run(variant, [problem]))
    assert measured[str(problem)] == 2


def test_each_pass_is_a_case_of_its_own(tmp_path: Path) -> None:
    variant, measured, problem = load({"name": "plain"}), Counter[str](), Problem(1, 1, 1, 16, 16, 16, 16, "float32")
    list(session(tmp_path, False, Clock(), measured).run(variant, [problem]))
    again = session(tmp_path, True, Clock(), measured)
    again.bench = Bench(("flashgen", "eager"), (FORWARD, BACKWARD))
    assert [rows[0].case.step for rows in again.run(variant, [problem])] == [FORWARD, BACKWARD]
    assert measured == {str(problem): 1, f"{problem}backward": 1}


def test_a_changed_variant_is_not_resumed(tmp_path: Path) -> None:
    measured, problem = Counter[str](), Problem(1, 1, 1, 16, 16, 16, 16, "float32")
    list(session(tmp_path, True, Clock(), measured).run(load({"name": "plain"}), [problem]))
    list(session(tmp_path, True, Clock(), measured).run(load({"name": "plain", "softcap": 3.0}), [problem]))
    assert measured[str(problem)] == 2
