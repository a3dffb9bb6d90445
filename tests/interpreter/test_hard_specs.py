"""The specs of hard_specs.py, outputs and gradients, in every dtype a schedule where there is one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hard_specs import SPECS

from flashgen.codegen import generate, load_module, uses_schedule
from flashgen.spec import load
from flashgen.verify import cases_for, gradient_cases_for, run_case

# What every variant has, and those of it that show most.
ANY = {case.name for case in cases_for(load({"name": "any"}), "quick", gpu=False, scheduled=False)}
CHOSEN = {"odd lengths", "one query", "whole tiles"}
# Each pair of these takes hundreds of terms: one call, and one for its gradients, go through all of them.
LONG = {"more terms than are written out"}


@pytest.mark.parametrize("name", SPECS)
def test_it_is_what_its_formula_says(tmp_path: Path, name: str) -> None:
    variant = load(SPECS[name])
    module, scheduled = load_module(generate(variant, tmp_path)), uses_schedule(variant)
    outputs = cases_for(variant, "quick", gpu=False, scheduled=scheduled)
    gradients = gradient_cases_for(variant, "quick", gpu=False, scheduled=scheduled)
    if name in LONG:
        cases = [*(case for case in outputs if case.name == "odd lengths"), gradients[0]]
    else:
        own = [case for case in outputs if case.name not in ANY and " = " not in case.name]
        chosen = [replace(case, return_max=True) for case in outputs if case.name in CHOSEN]
        cases = [*chosen, *own, *gradients[:3:2]]
    assert len(cases) > 1
    for case in cases:
        result = run_case(module, variant, case, "cpu")
        assert result.ok, f"{name}: {result}"
