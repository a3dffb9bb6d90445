"""Every gallery variant with dropout, forward and backward, against its formula through the mask that calls used."""

from __future__ import annotations

from pathlib import Path

import pytest
from dropping import dropping, dropping_module
from gallery import NAMES

from flashgen.codegen import uses_schedule
from flashgen.spec.variant import Variant
from flashgen.verify import Case, cases_for, gradient_cases_for, run_case

# Of each level one case in so many, for each variant others; on a GPU each has them all.
SHARE = 6


def some_of(variant: Variant, turn: int) -> list[Case]:
    scheduled = uses_schedule(variant)
    cases = [
        *cases_for(variant, "quick", gpu=False, scheduled=scheduled),
        *gradient_cases_for(variant, "quick", gpu=False, scheduled=scheduled),
    ]
    # What reaches past a window of 1023 takes long.
    return [case for case in cases if "reach" not in case.name][turn % SHARE :: SHARE]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dropout")


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(name, case, id=f"{name}-{case.name}")
        for turn, name in enumerate(NAMES)
        for case in some_of(dropping(name), turn)
    ],
)
def test_kernel_computes_its_formula(folder: Path, name: str, case: Case) -> None:
    result = run_case(dropping_module(name, folder), dropping(name), case, "cpu")
    assert result.ok, str(result)
