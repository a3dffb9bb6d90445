"""Each function of one float is what its row says: its values, where it rises, and its slope."""

from __future__ import annotations

import math

import numpy as np
import pytest
from language_world import compile

from flashgen.lang.derivative import derivatives
from flashgen.lang.elementary import ELEMENTARY
from flashgen.lang.evaluate import evaluate
from flashgen.lang.interval import LARGEST_FLOAT32
from flashgen.lang.nodes import Type, var

SIZES = [0.0, 1e-30, 0.01, 0.3, 0.7, 1.0, 1.4, 2.0, 3.3, 10.0, 87.0, 88.0, 126.0, 127.0, 1e4, 1e30, LARGEST_FLOAT32]
PLACES = sorted({sign * size for size in SIZES for sign in (1.0, -1.0)})


def value(name: str, x: float) -> float:
    with np.errstate(all="ignore"):
        return float(ELEMENTARY[name].value(x))


@pytest.mark.parametrize("name", ELEMENTARY)
def test_its_values_are_where_its_row_says(name: str) -> None:
    function = ELEMENTARY[name]
    inside = [x for x in PLACES if function.domain.low <= x <= function.domain.high]
    assert len(inside) > 9
    values = [value(name, x) for x in inside]
    assert all(function.within.low <= y <= function.within.high for y in values)
    assert all(abs(y) <= LARGEST_FLOAT32 for y in values)
    if function.rises:
        assert values == sorted(values)


@pytest.mark.parametrize("name", ELEMENTARY)
def test_its_derivative_is_its_slope(name: str) -> None:
    (found,) = derivatives(compile(f"{name}(score)", Type.FLOAT), [var("score", Type.FLOAT)])
    step = 1e-5
    for x in (0.2, 0.9, 1.3, 2.2):
        slope = (value(name, x + step) - value(name, x - step)) / (2 * step)
        assert slope and math.isclose(float(evaluate(found, {"score": x})), slope, rel_tol=1e-6)
