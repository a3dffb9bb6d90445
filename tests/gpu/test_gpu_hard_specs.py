"""The specs of hard_specs.py on a GPU: outputs and gradients, in every dtype, by every kernel that a GPU chooses."""

from __future__ import annotations

from pathlib import Path

import pytest
from hard_specs import SPECS

from flashgen.codegen import generate, load_module, uses_schedule
from flashgen.problems.problem import Problem
from flashgen.spec import load
from flashgen.verify import Case, cases_for, gradient_cases_for, run_case
from flashgen.verify.cases import Backward

pytestmark = pytest.mark.gpu

DTYPES = ("bfloat16", "float16", "float32")


def large(dtype: str) -> list[Case]:
    """Cases large enough for the kernels of a GPU's own."""
    problem = Problem(2, 4, 2, 530, 777, 64, 64, dtype)
    ways = (None, Backward(), Backward(deterministic=True))
    return [Case(f"large, {dtype}, {way}", problem, return_max=True, backward=way) for way in ways]


# A test for each dtype, which share no kernel: compiling those of one spec takes minutes.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECS)
def test_it_is_what_its_formula_says(tmp_path: Path, name: str, dtype: str) -> None:
    variant = load(SPECS[name])
    module, scheduled = load_module(generate(variant, tmp_path)), uses_schedule(variant)
    drawn = cases_for(variant, "quick", gpu=True, scheduled=scheduled)
    drawn += gradient_cases_for(variant, "quick", gpu=True, scheduled=scheduled)
    cases = [*(case for case in drawn if case.problem.dtype == dtype), *large(dtype)]
    wrong = [str(result) for case in cases if not (result := run_case(module, variant, case, "cuda")).ok]
    assert not wrong, "\n".join(wrong)
