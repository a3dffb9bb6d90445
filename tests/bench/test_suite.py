"""The suite of comparisons without a GPU: what it names exists, what it measured is not measured again."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from flashgen.bench import suite
from flashgen.bench.candidates import CANDIDATES, FLASHGEN, OURS, sdpa_causal
from flashgen.bench.comparisons import D64, D128, GROUPS, Comparison, Timed, sizes, timed_in
from flashgen.bench.passes import BACKWARD, FORWARD
from flashgen.bench.rows import Case, Row, read
from flashgen.bench.run import Prepared
from flashgen.bench.suite import Suite, compile_ahead, main, report, report_once, table
from flashgen.spec import load
from flashgen.spec.variant import Variant

MACHINE = ("a GPU", "2.0", "3.6")
SPEED = {FLASHGEN: 110.0}


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    monkeypatch.chdir(repository)


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_is_of_one_pass_and_of_what_its_candidates_have(group: str) -> None:
    timed = timed_in(GROUPS[group])
    assert len({(each.step, each.problem.dtype) for each in timed}) == 1
    assert len(GROUPS[group]) == len(set(GROUPS[group]))
    for each in timed:
        variant = load(Path("variants") / f"{each.variant}.yaml")
        assert each.candidate in CANDIDATES
        if each.candidate.startswith("torch"):
            sdpa_causal(variant, each.problem)


def test_a_comparison_says_what_differs() -> None:
    causal, alibi = Timed("causal", D128), Timed("alibi", D128)
    assert Comparison(alibi, causal).beside == "causal, D128, S8192"
    assert Comparison(causal, replace(causal, candidate="torch cuDNN")).beside == "torch cuDNN"
    grouped = Timed("causal", sizes(4000, 96, heads=8, kv_heads=2), BACKWARD, "flashgen, deterministic")
    assert str(grouped) == "causal, D96, S4000, 8 heads over 2, deterministic"


class Fake(Suite):
    """Every candidate reaches 100 TFLOP/s, the generated kernels 110; `wrong` does not compute its formula."""

    def __init__(self, out: Path, known: Sequence[Row] = (), wrong: str = "") -> None:
        self.groups: list[Sequence[str]] = []

        def prepare(variant: Variant, module: ModuleType, case: Case, names: Sequence[str]) -> Prepared:
            assert (module.IDENTITY.variant, names[0]) == (variant.name, FLASHGEN)
            ready = {name: lambda: () for name in names if name != wrong}
            return Prepared(case, tuple(names), ready, {wrong: "not timed: wrong"} if wrong in names else {}, 0.5)

        def measure(cases: Sequence[Prepared], rounds: int) -> list[Row]:
            self.groups.append([each.case.variant for each in cases])
            return [
                Row(each.case, name, 0.5, tflops=SPEED.get(name, 100.0) if name in each.ready else None,
                    note=each.notes.get(name, ""))
                for each in cases
                for name in each.candidates
            ]  # fmt: skip

        super().__init__(MACHINE, out, known, 15, prepare, measure)


CAUSAL, FULL = Timed("causal", D64), Timed("full", D64)
CHOSEN = {
    "one": [Comparison(CAUSAL, replace(CAUSAL, candidate="torch cuDNN")), Comparison(CAUSAL, FULL)],
    "two": [Comparison(FULL, replace(FULL, candidate="FlexAttention"))],
}


def test_what_is_measured_together_is_printed_and_a_second_run_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, fake = tmp_path / "rows.jsonl", Fake(tmp_path)
    assert report(fake, CHOSEN, rows, None, 1) == 0
    assert fake.groups == [["causal", "full"], ["full"]]
    first = capsys.readouterr().out
    assert first.splitlines()[2:] == [
        "| forward | causal, D64, S8192 | 110 | torch cuDNN | 100 | 1.10 |",
        "| forward | causal, D64, S8192 | 110 | full, D64, S8192 | 110 | 1.00 |",
        "| forward | full, D64, S8192 | 110 | FlexAttention | 100 | 1.10 |",
    ]
    again = Fake(tmp_path, read(rows))
    assert report(again, CHOSEN, rows, None, 1) == 0
    assert again.groups == [] and capsys.readouterr().out == first
    # Time is up from the start: nothing is measured, and the table has what there is.
    late = Fake(tmp_path, [row for row in read(rows) if row.candidate != "FlexAttention"])
    assert report(late, CHOSEN, None, -1.0, 1) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == first.splitlines()[:4] and "two was left when the time was up" in said.err


def test_what_two_groups_time_is_compared_with_what_was_timed_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, fake = tmp_path / "rows.jsonl", Fake(tmp_path)
    one, two = ([Comparison(CAUSAL, replace(CAUSAL, candidate=name))] for name in ("torch cuDNN", "FlexAttention"))
    speeds = iter([50.0, 200.0])
    measured = fake.measure

    def measure(cases: Sequence[Prepared], rounds: int) -> list[Row]:
        speed = next(speeds)
        return [
            replace(row, tflops=2 * speed if row.candidate == FLASHGEN else speed) for row in measured(cases, rounds)
        ]

    fake.measure = measure
    assert report(fake, {"one": one, "two": two}, rows, None, 1) == 0
    expected = [
        "| forward | causal, D64, S8192 | 100 | torch cuDNN | 50 | 2.00 |",
        "| forward | causal, D64, S8192 | 400 | FlexAttention | 200 | 2.00 |",
    ]
    assert capsys.readouterr().out.splitlines()[2:] == expected
    assert report(Fake(tmp_path, read(rows)), {"one": one, "two": two}, rows, None, 1) == 0
    assert capsys.readouterr().out.splitlines()[2:] == expected


def test_what_is_wrong_has_no_ratio_and_fails_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(Fake(tmp_path, wrong="torch cuDNN"), {"one": CHOSEN["one"]}, None, None, 1) == 1
    said = capsys.readouterr()
    assert "| forward | causal, D64, S8192 | 110 | torch cuDNN |  |  |" in said.out
    assert "torch cuDNN, causal, D64, S8192: not timed: wrong" in said.err
    assert report_once(Fake(tmp_path, wrong="torch cuDNN"), CHOSEN) == 1
    assert report_once(Fake(tmp_path), CHOSEN) == 0


def test_a_comparison_that_was_not_measured_has_no_row() -> None:
    assert len(table(GROUPS, {name: {} for name in GROUPS})) == 2
    assert {each.step for group in GROUPS.values() for each in timed_in(group)} >= {FORWARD, BACKWARD}
    assert all(each.ours.candidate in OURS for group in GROUPS.values() for each in group)


def test_each_variant_of_a_group_is_compiled_in_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        rest = command[command.index("flashgen.bench.suite") + 1 :]
        assert "--once" in rest
        parts.append(rest[-3:])
        failed = rest[-1] == "full"
        return subprocess.CompletedProcess(command, int(failed), "", "Traceback\nValueError: no\n" if failed else "")

    monkeypatch.setattr(suite.subprocess, "run", run)
    compile_ahead(["odd", "learned"], ["--out", "there"], 1)
    assert parts == [
        ["odd", "--variant", "full"],
        ["odd", "--variant", "causal"],
        ["learned", "--variant", "relative_bias"],
    ]
    assert capsys.readouterr().err == "odd, full: ValueError: no\n"


def test_unknown_groups_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forwards"]) == 2
    assert "no group 'forwards'; expected one of forward-d128, " in capsys.readouterr().err
    assert main(["odd", "--resume"]) == 2
