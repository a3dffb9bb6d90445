"""Which divisions are by a reciprocal, and that they say the same."""

from __future__ import annotations

import pytest
from expression_strategies import expressions
from hypothesis import given
from hypothesis import strategies as st
from language_world import SCOPE, compile, pairs

from flashgen.analysis.arithmetic import is_reciprocal, with_reciprocals
from flashgen.lang.intervals import Ranges
from flashgen.lang.nodes import Expr, Op, Type, op
from flashgen.lang.traversal import transform, walk

RANGES = Ranges({"doc": "int32", "off": "int64", "rel": "float32", "keep": "bool", "gain": "float32", "shift": "int16"})


def spelled_out(node: Expr) -> Expr:
    """Quotients and remainders by reciprocals as what they stand for."""
    if isinstance(node, Op) and node.name == "floordiv_by":
        return op("floordiv", node.args[0], node.args[1].children[0])
    return op("mod", *node.args[:2]) if isinstance(node, Op) and node.name == "remainder_of" else node


@given(kind=st.sampled_from(list(Type)), data=st.data(), at=pairs())
def test_it_stands_for_the_same_expression(kind: Type, data: st.DataObject, at: dict) -> None:
    expr = compile(data.draw(expressions(kind, SCOPE, 4)), kind)
    found = with_reciprocals(expr, RANGES)
    assert transform(found, spelled_out) is expr
    assert RANGES.of(found) == RANGES.of(expr)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("k // n", 1),
        ("q % n", 1),
        ("(q - k) // n + (q - k) % n", 1),
        ("k // n + k % shift", 2),
        ("k // kv_len", 1),
        ("k // doc[b, 0]", 1),
        # A constant, for which the compiler finds one itself.
        ("k // 7", 0),
        # One division a program.
        ("kv_len // n", 0),
        # A divisor for each row, and each key.
        ("k // q", 0),
        ("k % doc[b, k]", 0),
        # More than there is room for.
        ("doc[b, k] % n", 0),
        ("k % off[n]", 0),
    ],
)
def test_which(text: str, count: int) -> None:
    assert sum(map(is_reciprocal, walk(with_reciprocals(compile(text), RANGES)))) == count
