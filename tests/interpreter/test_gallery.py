"""Every gallery variant against its reference on every case of the quick level, and some of the full one."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from gallery import VARIANTS
from gallery_cases import each_with_some

from flashgen.verify import Case, cases_for, run_case


@each_with_some(cases_for)
def test_kernel_computes_its_formula(gallery_module: Callable[[str], ModuleType], name: str, case: Case) -> None:
    result = run_case(gallery_module(name), VARIANTS[name], case, "cpu")
    assert result.ok, str(result)
