"""Cases of the gallery's variants for the interpreter: the quick level, and of the full one some for each variant."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gallery import VARIANTS

from flashgen.codegen import uses_schedule
from flashgen.verify import Case

# What the full level adds, one in so many for each variant in turn; on a GPU each has them all.
SHARE = 4


def each_with_some(cases_for: Callable[..., tuple[Case, ...]]) -> pytest.MarkDecorator:
    """Runs a test for each variant's `name` with each `case` of its."""
    return pytest.mark.parametrize(
        ("name", "case"),
        [
            pytest.param(name, case, id=f"{name}-{case.name}")
            for turn, name in enumerate(VARIANTS)
            for case in some_of(cases_for, name, turn)
        ],
    )


def some_of(cases_for: Callable[..., tuple[Case, ...]], name: str, turn: int) -> list[Case]:
    scheduled = uses_schedule(VARIANTS[name])
    quick, full = (cases_for(VARIANTS[name], level, gpu=False, scheduled=scheduled) for level in ("quick", "full"))
    return [*quick, *full[len(quick) :][turn % SHARE :: SHARE]]
