"""Floors of branches that are not taken, kept short."""

from __future__ import annotations

import math

import pytest
from expression_strategies import expressions
from hypothesis import given
from hypothesis import strategies as st
from language_world import SCOPE, TENSORS, compile, pairs

from flashgen.lang.evaluate import evaluate
from flashgen.lang.intervals import Ranges
from flashgen.lang.nodes import Op, Type
from flashgen.lang.short_floors import with_short_floors
from flashgen.lang.traversal import walk

RANGES = Ranges({"doc": "int32", "off": "int64", "rel": "float32", "keep": "bool", "gain": "float32", "shift": "int16"})


def short(text: str) -> bool:
    """Whether all floors fit 32 bits, as kernels compute them."""
    found = with_short_floors(compile(text), RANGES.fits_int32)
    return all(RANGES.fits_int32(node) for node in walk(found) if isinstance(node, Op) and node.name == "floor")


BUCKETS = "where({test}, {near}, min(8 + floor(log({n} / 8) / 2.77 * 8), 15))"


@pytest.mark.parametrize("n", ["k", "abs(q - k)", "(k - q)", "(k if q % 2 == 0 else h)"])
@pytest.mark.parametrize("test", ["{n} < 8", "8 > {n}", "{n} <= 0", "({n} < 8) | (q == 3)", "not {n} >= 1"])
@given(at=pairs())
def test_what_a_test_limits_is_kept_in_its_branch(n: str, test: str, at: dict) -> None:
    text = BUCKETS.format(test=test.format(n=n), near=n, n=n)
    assert short(text)
    expr = compile(text, Type.INT)
    assert evaluate(with_short_floors(expr, RANGES.fits_int32), at, TENSORS) == evaluate(expr, at, TENSORS)


@pytest.mark.parametrize(
    "text",
    [
        "where(k > 5, -1, floor(k * 4e8))",
        "where(k >= 6, -1, floor(k * 4e8))",
        "where(5 >= k, floor(k * 4e8), -1)",
        "where(not (k > 5 or h > 2), floor(k * 4e8), -1)",
    ],
)
@given(at=pairs())
def test_the_last_integer_within_a_limit_stays_itself(text: str, at: dict) -> None:
    expr = compile(text, Type.INT)
    assert short(text)
    assert evaluate(with_short_floors(expr, RANGES.fits_int32), at, TENSORS) == evaluate(expr, at, TENSORS)


def test_where_one_of_two_does_not_hold_nothing_is_said_of_either() -> None:
    expr = compile("where(not (k < 6 and h < 3), floor(k * 4e8), -1)", Type.INT)
    assert with_short_floors(expr, RANGES.fits_int32) is expr


@pytest.mark.parametrize("test", ["k > 3", "k < 8 or q < 3", "h < 8", "k < 0", "keep[b, k]", "k < q", "k != 0"])
def test_a_test_that_says_too_little_leaves_all_as_it_is(test: str) -> None:
    expr = compile(BUCKETS.format(test=test, near="k", n="k"))
    if test == "k < 8 or q < 3":
        assert with_short_floors(expr, RANGES.fits_int32) is not expr
    else:
        assert with_short_floors(expr, RANGES.fits_int32) is expr


@given(kind=st.sampled_from(list(Type)), data=st.data(), at=pairs())
def test_the_value_stays(kind: Type, data: st.DataObject, at: dict) -> None:
    expr = compile(data.draw(expressions(kind, SCOPE, 4)), kind)
    found, expected = (evaluate(each, at, TENSORS) for each in (with_short_floors(expr, RANGES.fits_int32), expr))
    assert found == expected or (math.isnan(found) and math.isnan(expected))
