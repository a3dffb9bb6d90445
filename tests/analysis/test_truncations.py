"""Which floats are truncated by a conversion, and that they say the same."""

from __future__ import annotations

import pytest
from expression_strategies import expressions
from hypothesis import given
from hypothesis import strategies as st
from language_world import SCOPE, TENSORS, compile, pairs

from flashgen.analysis.arithmetic import with_quotients, with_truncations
from flashgen.lang.evaluate import evaluate
from flashgen.lang.fold import simplify
from flashgen.lang.intervals import Ranges
from flashgen.lang.nodes import Expr, Op, Type, const, op
from flashgen.lang.traversal import transform, walk

RANGES = Ranges({"doc": "int32", "off": "int64", "rel": "float32", "keep": "bool", "gain": "float32", "shift": "int16"})


def spelled_out(node: Expr) -> Expr:
    if not (isinstance(node, Op) and node.name == "trunc"):
        return node
    x = node.args[0]
    ceiling = simplify(op("neg", op("floor", simplify(op("neg", x)))))
    return op("where", op("lt", x, const(0.0)), ceiling, op("floor", x))


def count(expr: Expr) -> int:
    return sum(isinstance(node, Op) and node.name == "trunc" for node in walk(expr))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("where({x} < 0, ceil({x}), floor({x}))", 1),
        ("where({x} <= 0, -floor(-{x}), floor({x}))", 1),
        ("floor({x}) if {x} >= 0 else ceil({x})", 1),
        ("where({x} > 0, floor({x}), ceil({x}))", 1),
        # Away from zero.
        ("where({x} < 0, floor({x}), ceil({x}))", 0),
        ("where({x} < 1, ceil({x}), floor({x}))", 0),
        ("where(q < 0, ceil({x}), floor({x}))", 0),
        ("where({x} == 0, ceil({x}), floor({x}))", 0),
        ("where({x} < 0, ceil({x}), k)", 0),
        ("where({x} < 0, k, floor({x}))", 0),
    ],
)
@given(at=pairs())
def test_which(text: str, expected: int, at: dict) -> None:
    expr = compile(text.format(x="((q - k) / 3)"), Type.INT)
    found = with_truncations(expr, RANGES)
    assert count(found) == expected
    assert evaluate(transform(found, spelled_out), at, TENSORS) == evaluate(expr, at, TENSORS)


@pytest.mark.parametrize("x", ["gain", "(k * 2000.0 - 7.5)"])
def test_what_32_bits_may_not_hold_stays(x: str) -> None:
    assert count(with_truncations(compile(f"where({x} < 0, ceil({x}), floor({x}))"), RANGES)) == 0
    short = "(k * 2.0 - 7.5)"
    assert count(with_truncations(compile(f"where({short} < 0, ceil({short}), floor({short}))"), RANGES)) == 1


def test_a_division_that_a_truncation_decides_is_right_to_the_last_bit() -> None:
    found = with_quotients(with_truncations(compile("where(k / 41 < 0, ceil(k / 41), floor(k / 41))"), RANGES))
    assert isinstance(found, Op) and found.name == "trunc"
    assert isinstance(found.args[0], Op) and found.args[0].name == "quotient"


@given(kind=st.sampled_from(list(Type)), data=st.data())
def test_all_else_stays(kind: Type, data: st.DataObject) -> None:
    expr = compile(data.draw(expressions(kind, SCOPE, 4)), kind)
    found = with_truncations(expr, RANGES)
    assert found is expr or count(found)
