"""What slopes come to over the rows of a tile, from the first of which kernels count them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashgen.problems.calls import make_inputs
from flashgen.problems.problem import Problem
from flashgen.spec import load
from flashgen.verify.row_terms import ROWS_OF_A_TILE, counted_apart

PROBLEM = Problem(2, 4, 2, 20, 30, 16, 16, "float32")


def of_spec(slopes: list[float] | None = None, **spec: Any) -> torch.Tensor:
    variant = load({"name": "sloped", **spec})
    call = make_inputs(variant, PROBLEM)
    if slopes is not None:
        call.inputs["slopes"] = torch.tensor(slopes)
    return counted_apart(variant, call)


def test_each_head_has_its_own() -> None:
    found = of_spec([0.5, 0.25, 0.0, 2.0], bias="alibi", causal=True)
    torch.testing.assert_close(found[0, :, 0], ROWS_OF_A_TILE * torch.tensor([0.5, 0.25, 0.0, 2.0]).double())
    assert found.shape == (2, 4, 1)


def test_a_factor_of_sizes_and_params_is_known() -> None:
    params = {"steep": {"value": 3.0, "runtime": True}}
    found = of_spec(params=params, score="score - steep * (q - 2 * k) / (heads + batch)")
    torch.testing.assert_close(found, torch.full_like(found, ROWS_OF_A_TILE * 2 * 3.0 / 6))


@pytest.mark.parametrize("score", ["score", "5 * tanh(score / 5)", "score + 0.5 * abs(q - k)", "score - q * 0.001"])
def test_others_have_none(score: str) -> None:
    assert not bool(of_spec(score=score).any())


def test_a_default_counts_as_the_steepest_that_there_is() -> None:
    variant = load({"name": "sloped", "bias": "alibi", "causal": True})
    call = make_inputs(variant, PROBLEM)
    del call.inputs["slopes"]
    assert float(counted_apart(variant, call).max()) == ROWS_OF_A_TILE


def test_beside_a_sink_what_all_scores_of_a_row_have_in_common_counts() -> None:
    assert not bool(of_spec(score="score - 30.0").any())
    found = of_spec(sink="learned", score="score - 30.0")
    torch.testing.assert_close(found, torch.full_like(found, 30.0))
