"""Every gallery variant against its reference on every case of the full level, long lengths included."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
from gallery import VARIANTS

from flashgen.codegen import uses_schedule
from flashgen.verify import Case, cases_for, run_case

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(variant.name, case, id=f"{variant.name}-{case.name}")
        for variant in VARIANTS.values()
        for case in cases_for(variant, "full", gpu=True, scheduled=uses_schedule(variant))
    ],
)
def test_kernel_computes_its_formula(gallery_module: Callable[[str], ModuleType], name: str, case: Case) -> None:
    result = run_case(gallery_module(name), VARIANTS[name], case, "cuda")
    assert result.ok, str(result)
