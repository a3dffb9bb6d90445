"""The specs of hard_specs.py on a GPU: outputs and gradients, in every dtype, by every kernel that a GPU chooses."""

from __future__ import annotations

from pathlib import Path

import pytest
from hard_specs import SPECS

from flashgen.codegen import generate, load_module, uses_schedule
from flashgen.problems import Problem
from flashgen.spec import load
from flashgen.verify import Case, cases_for, gradient_cases_for, run_case
from flashgen.verify.cases import Backward

pytestmark = pytest.mark.gpu

# Large enough for the kernels of a GPU's own, in each dtype.
LARGE = [
    Case(f"large, {dtype}, {backward}", Problem(2, 4, 2, 530, 777, 64, 64, dtype), return_max=True, backward=backward)
    for dtype in ("bfloat16", "float16", "float32")
    for backward in (None, Backward(), Backward(deterministic=True))
]  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
def test_it_is_what_its_formula_says(tmp_path: Path, name: str) -> None:
    variant = load(SPECS[name])
    module, scheduled = load_module(generate(variant, tmp_path)), uses_schedule(variant)
    cases = [*cases_for(variant, "quick", gpu=True, scheduled=scheduled), *LARGE]
    cases += gradient_cases_for(variant, "quick", gpu=True, scheduled=scheduled)
    wrong = [str(result) for case in cases if not (result := run_case(module, variant, case, "cuda")).ok]
    assert not wrong, "\n".join(wrong)
