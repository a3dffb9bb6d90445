"""Gradients of every gallery variant on every case of the full level, long lengths included; and from run to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from gallery import VARIANTS

from flashgen.codegen import uses_schedule
from flashgen.problems.calls import make_inputs
from flashgen.problems.problem import Problem
from flashgen.verify import Case, gradient_cases_for, run_case
from flashgen.verify.cases import Backward
from flashgen.verify.eager_gradients import gradients_of, leaves_of
from flashgen.verify.gradients import draw_loss

RUNS = 5

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(variant.name, case, id=f"{variant.name}-{case.name}")
        for variant in VARIANTS.values()
        for case in gradient_cases_for(variant, "full", gpu=True, scheduled=uses_schedule(variant))
    ],
)
def test_kernels_compute_the_gradients(gallery_module: Callable[[str], ModuleType], name: str, case: Case) -> None:
    result = run_case(gallery_module(name), VARIANTS[name], case, "cuda")
    assert result.ok, str(result)


@pytest.mark.parametrize("name", VARIANTS)
def test_deterministic_gradients_are_the_same_on_every_run(
    gallery_module: Callable[[str], ModuleType], name: str
) -> None:
    problem = Problem(2, 8, 4, 4001, 4001, 128, 128, "bfloat16")
    case, backward = Case("repeated", problem), Backward(deterministic=True)
    call = make_inputs(VARIANTS[name], problem, "cuda")
    loss = draw_loss(VARIANTS[name], case, backward, call)
    leaves = leaves_of(call, loss)
    learned = {name: leaves[name] for name in loss.learned}
    call = replace(call, inputs=call.inputs | learned)

    def gradients() -> dict[str, torch.Tensor]:
        out, lse = gallery_module(name).attention(
            leaves["q"], leaves["k"], leaves["v"], **call.keywords, return_lse=True, deterministic=True
        )
        return gradients_of((out, lse), leaves, loss)

    first = gradients()
    for _ in range(RUNS - 1):
        assert all(torch.equal(first[name], gradient) for name, gradient in gradients().items())
