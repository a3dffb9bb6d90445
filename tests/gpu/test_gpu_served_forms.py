"""Packed and paged sequences on a GPU, by the kernels that a module chooses, for what formulas read of a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from served_specs import SPECS

from flashgen.codegen import generate, load_module
from flashgen.problems.elements import has_elements
from flashgen.spec import load
from flashgen.verify.cases import cases_for, gradient_cases_for
from flashgen.verify.paged_cases import paged_cases_for
from flashgen.verify.run import run_case

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_right_kernels_pass(spec: dict[str, Any], tmp_path: Path) -> None:
    variant = load({"name": "served", **spec})
    module = load_module(generate(variant, tmp_path))
    calls = (*cases_for(variant, "quick", True, False), *gradient_cases_for(variant, "quick", True, False))
    cases = [*(case for case in calls if case.lengths), *paged_cases_for(variant, "quick")]
    results = [run_case(module, variant, case, "cuda") for case in cases if has_elements(variant, case.problem)]
    assert len(results) >= 5
    assert [f"{each.name}: {each.detail}" for each in results if not each.ok] == []
