"""Scores that grow faster than q k^T are proven as large as float32 can tell their weights apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flashgen.codegen import generate, load_module
from flashgen.problems.calls import make_inputs
from flashgen.problems.problem import Problem
from flashgen.spec import load
from flashgen.verify.bearable import HUGE, bearable
from flashgen.verify.cases import cases_for, gradient_cases_for
from flashgen.verify.run import run_cases

PROBLEM = Problem(1, 2, 2, 30, 40, 16, 16, "float32")
GAIN = 100.0


@pytest.mark.parametrize(
    "score",
    [
        "score ** 4",
        "exp(score)",
        "score + exp2(abs(score) / 8)",
        "-abs(score) ** 3 + score",
        "score / (1 + exp(-score))",
        "log(1 / (1 + exp(-score)))",
    ],
)
def test_a_steep_score_is_proven(score: str, tmp_path) -> None:
    variant = load({"name": "steep", "score": score, "mask": "k <= q"})
    module = load_module(generate(variant, tmp_path))
    cases = [*cases_for(variant, "quick", False, False), *gradient_cases_for(variant, "quick", False, False)]
    large = [case for case in cases if case.gain > 1 and not case.decoded]
    report = run_cases(module, variant, large, level="quick", device="cpu")
    assert len(large) >= 4 and report.passed, str(report)


def rows_of(spec: dict[str, Any], tmp_path) -> tuple[torch.Tensor, float]:
    """The lse of a call that is as large as it bears, and how much of the gain is left."""
    variant = load({"name": "rows", **spec})
    module = load_module(generate(variant, tmp_path))
    call = make_inputs(variant, PROBLEM, "cpu", 1)
    found = bearable(replace(call, q=call.q * GAIN), module.reference, GAIN)
    lse = module.reference(found.q.double(), found.k.double(), found.v.double(), **found.keywords, return_lse=True)[1]
    return lse, float((found.q / call.q).median())


def test_it_is_as_large_as_rows_stay_ordinary(tmp_path) -> None:
    lse, gain = rows_of({"score": "score ** 3"}, tmp_path)
    assert 1 < gain < GAIN and lse.abs().max() <= HUGE
    assert 64 * lse.abs().max() > HUGE


def test_an_ordinary_score_has_all_of_it(tmp_path) -> None:
    assert rows_of({}, tmp_path)[1] == pytest.approx(GAIN)


def test_rows_that_are_huge_anyway_stay_so(tmp_path) -> None:
    lse, gain = rows_of({"score": "score - 1e7 if q < 13 else score"}, tmp_path)
    assert gain == pytest.approx(GAIN) and (lse.abs() > HUGE).any()
