"""The specs of hard_specs.py, outputs and gradients, in every dtype."""

from __future__ import annotations

from pathlib import Path

import pytest
from hard_specs import SPECS

from flashgen.codegen import generate, load_module, uses_schedule
from flashgen.spec import load
from flashgen.verify import cases_for, gradient_cases_for, run_case


@pytest.mark.parametrize("name", SPECS)
def test_it_is_what_its_formula_says(tmp_path: Path, name: str) -> None:
    variant = load(SPECS[name])
    module, scheduled = load_module(generate(variant, tmp_path)), uses_schedule(variant)
    outputs = cases_for(variant, "quick", gpu=False, scheduled=scheduled)
    gradients = gradient_cases_for(variant, "quick", gpu=False, scheduled=scheduled)
    for case in (*outputs, *gradients[:3]):
        result = run_case(module, variant, case, "cpu")
        assert result.ok, f"{name}: {result}"
