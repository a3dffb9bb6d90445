"""The processes that try cases: what crashes, hangs or runs out of time costs its own case alone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flashgen.verify.soak import crew
from flashgen.verify.soak.case import Case
from flashgen.verify.soak.crew import Soak, Trier


def test_what_crashes_or_hangs_costs_its_own_case_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "ANSWERER", "soak_answers:answerer")
    mother = crew.nursery("cpu")
    trier = Trier("cpu", 5, mother)
    case = Case({"name": "causal", "causal": True}, 1, 2, 1, 40, 70, 16, 16, "float32")
    answers = [trier(case.with_spec(description=what))["kind"] for what in ("crash", "answer", "hang", "answer")]
    trier.close()
    mother.close()
    assert answers == ["crashed", "passed", "timed out", "passed"]


def test_what_ran_out_of_time_beside_others_is_tried_again_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOAK_ANSWERS_SLOW", str(tmp_path / "slow"))
    monkeypatch.setattr(crew, "ANSWERER", "soak_answers:answerer")
    rows = list(Soak(5, "cpu", 2, 3, 0).of(range(4)))
    assert sorted((row.index, row.kind) for row in rows if row) == [(index, "passed") for index in range(4)]


def test_what_ran_out_of_time_is_told_where_none_is_left_to_try_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOAK_ANSWERS_SLOW", str(tmp_path / "slow"))
    monkeypatch.setattr(crew, "ANSWERER", "soak_answers:answerer")
    end = time.monotonic() + 2
    rows = list(Soak(5, "cpu", 2, 3, 0).of(range(2), lambda: time.monotonic() > end))
    assert sorted(row.kind for row in rows if row) == ["passed", "timed out"]
