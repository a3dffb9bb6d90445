"""Every gallery variant against its reference on every case of the quick level, and some of the full one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from flashgen.codegen import uses_schedule
from flashgen.spec import load
from flashgen.spec.variant import Variant
from flashgen.verify import Case, cases_for, run_case

GALLERY = [load(path) for path in sorted((Path(__file__).parent.parent.parent / "variants").glob("*.yaml"))]
VARIANTS = {variant.name: variant for variant in GALLERY}


# What the full level adds, one in so many for each variant in turn; on a GPU each has them all.
SHARE = 4


def some_of(variant: Variant, turn: int) -> list[Case]:
    quick, full = (
        cases_for(variant, level, gpu=False, scheduled=uses_schedule(variant)) for level in ("quick", "full")
    )
    return [*quick, *full[len(quick) :][turn % SHARE :: SHARE]]


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(variant.name, case, id=f"{variant.name}-{case.name}")
        for turn, variant in enumerate(GALLERY)
        for case in some_of(variant, turn)
    ],
)
def test_kernel_computes_its_formula(gallery_module: Callable[[str], ModuleType], name: str, case: Case) -> None:
    result = run_case(gallery_module(name), VARIANTS[name], case, "cpu")
    assert result.ok, str(result)
