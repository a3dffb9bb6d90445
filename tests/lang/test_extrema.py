from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.lang.evaluate import evaluate
from flashgen.lang.extrema import without_negated_operands
from flashgen.lang.interval import Interval
from flashgen.lang.intervals import Ranges
from flashgen.lang.nodes import Const, Expr, Op, Type, const, gather, op, var
from flashgen.lang.show import show
from flashgen.lang.traversal import variables, walk

NAMES = ("t", "u", "v", "w")
INTS = st.recursive(
    st.sampled_from([var(name, Type.INT) for name in NAMES]) | st.integers(-9, 9).map(const),
    lambda inner: (
        st.builds(op, st.sampled_from(["min", "max", "add", "sub"]), inner, inner)
        | st.builds(op, st.sampled_from(["neg", "abs"]), inner)
        | st.builds(lambda x: op("mul", x, const(-1)), inner)
    ),
    max_leaves=8,
)
BOOLS = st.builds(op, st.sampled_from(["lt", "le", "gt", "ge", "eq"]), INTS, INTS)
AT = st.fixed_dictionaries(dict.fromkeys(NAMES, st.integers(-(2**20), 2**20)))


def written(expr: Expr) -> Expr:
    return without_negated_operands(expr, lambda node: True, lambda node: False)


def is_negation(node: Expr) -> bool:
    return isinstance(node, Op) and (node.name == "neg" or (node.name == "mul" and const(-1) in node.args))


@given(expr=INTS | BOOLS, at=AT)
def test_the_value_stays(expr: Expr, at: dict[str, int]) -> None:
    assert evaluate(written(expr), at) == evaluate(expr, at)


@given(expr=INTS | BOOLS)
def test_no_operand_is_negated(expr: Expr) -> None:
    for node in walk(written(expr)):
        if isinstance(node, Op) and node.name in ("min", "max") and not all(isinstance(x, Const) for x in node.args):
            assert not any(is_negation(child) and not isinstance(child.children[0], Const) for child in node.args)


@given(expr=INTS | BOOLS)
def test_what_is_written_depends_on_all_that_the_expression_does(expr: Expr) -> None:
    assert variables(written(expr)) == variables(expr)


T, U, V = (var(name, Type.INT) for name in "tuv")


@pytest.mark.parametrize("name", ["tile_min", "tile_max"])
def test_the_extreme_over_a_tile_of_negated_values_is_the_other_one_negated(name: str) -> None:
    other = {"tile_min": "tile_max", "tile_max": "tile_min"}[name]
    assert written(op(name, op("neg", T))) is op("neg", op(other, T))


def test_comparisons_are_asked_of_both_sides() -> None:
    found = written(op("le", op("max", T, op("neg", U)), const(3)))
    assert found is op("and", op("le", T, const(3)), op("ge", U, const(-3)))


def test_what_needs_64_bits_stays() -> None:
    expr = op("max", op("max", T, op("neg", U)), V)
    assert without_negated_operands(expr, lambda node: False, lambda node: False) is expr


# Of t and u even the negative fits 32 bits; the limit may be anything.
LIMIT = gather("limit", (var("h", Type.INT),), Type.INT)
FAR = [0, 5, 2**31 - 1, -(2**31), 2**31, 2**62, -(2**62), 2**63 - 1, -(2**63)]


@pytest.mark.parametrize("limit", [LIMIT, *map(const, FAR)], ids=show)
@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge"])
@pytest.mark.parametrize("side", [op("neg", U), op("abs", U), op("max", T, op("neg", U))], ids=show)
def test_a_limit_at_the_end_of_64_bits_is_compared_as_it_is(side: Expr, name: str, limit: Expr) -> None:
    ranges = Ranges({"limit": "int64"})
    for node in (T, U):
        ranges.assume(node, Interval(-(2**30), 2**30))
    # Beside another comparison, so that an absolute value is not left alone.
    expr = op("and", op(name, side, limit), op("le", V, U))
    found = ranges.plain(expr)
    for t, u, element in product((-7, 0, 2**30), (-(2**30), -1, 0, 9), FAR):
        at = {"t": t, "u": u, "v": -(2**30), "h": 0}
        assert evaluate(found, at, {"limit": [element]}) == evaluate(expr, at, {"limit": [element]})


@pytest.mark.parametrize(
    "never",
    [
        op("lt", op("max", op("abs", T), const(27)), const(0)),
        op("lt", op("max", T, op("neg", U)), T),
        op("lt", op("min", op("max", op("neg", T), const(27)), U), const(5)),
    ],
    ids=["by a constant", "by itself", "in part"],
)
def test_no_comparison_is_decided(never: Expr) -> None:
    found = written(op("or", op("lt", V, U), never))
    assert variables(found) == {"t", "u", "v"}
    assert not any(isinstance(node, Const) and node.type is Type.BOOL for node in walk(found))
