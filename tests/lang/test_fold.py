"""Folding keeps the value, bit for bit, and does what it is there for."""

from __future__ import annotations

import math
import struct

import pytest
from expression_strategies import expressions
from hypothesis import given
from hypothesis import strategies as st
from language_world import SCOPE, compile

from flashgen.lang.evaluate import evaluate
from flashgen.lang.fold import fold
from flashgen.lang.nodes import FALSE, FLOAT_FUNCTIONS, OPERATORS, TRUE, Const, Expr, Op, Type, const, op, var
from flashgen.lang.scope import Scope

X, Y = var("x", Type.INT), var("y", Type.INT)
F, G = var("f", Type.FLOAT), var("g", Type.FLOAT)
P, R = var("p", Type.BOOL), var("r", Type.BOOL)

# Where identities live: units, zeros of both signs, and what surrounds them.
_SPECIAL: dict[Type, list] = {
    Type.BOOL: [True, False],
    Type.INT: [-2, -1, 0, 1, 2, 3, 63, 64],
    Type.FLOAT: [-2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, float("inf"), float("-inf"), float("nan")],
}


@st.composite
def graphs(draw: st.DrawFn, kind: Type, depth: int = 3) -> Expr:
    """Graphs that the checker has not simplified, dense in constants that identities look for."""
    finite = [value for value in _SPECIAL[kind] if value == value and abs(value) < 1e9]
    leaf = st.one_of(st.sampled_from({Type.BOOL: [P, R], Type.INT: [X, Y], Type.FLOAT: [F, G]}[kind]),
                     st.sampled_from(finite).map(const))  # fmt: skip
    if depth == 0:
        return draw(leaf)
    name = draw(st.sampled_from([None, *_NAMES[kind]]))
    if name is None:
        return draw(leaf)
    operands = draw(st.sampled_from(_OPERANDS(name, kind)))
    if name == "pow" and kind is Type.INT:
        return op(name, draw(graphs(kind, depth - 1)), const(draw(st.integers(0, 5))))
    return op(name, *(draw(graphs(operand, depth - 1)) for operand in operands))


_NAMES = {
    Type.BOOL: ["lt", "le", "gt", "ge", "eq", "ne", "and", "or", "xor", "not", "where"],
    Type.INT: ["add", "sub", "mul", "floordiv", "mod", "pow", "neg", "and", "or", "xor", "not", "shl", "shr", "abs",
               "min", "max", "where", "floor", "to_int"],
    Type.FLOAT: ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "abs", "min", "max", "where",
                 "to_float", *sorted(FLOAT_FUNCTIONS)],
}  # fmt: skip


def _OPERANDS(name: str, kind: Type) -> list[tuple[Type, ...]]:
    if name in ("lt", "le", "gt", "ge"):
        return [(Type.INT, Type.INT), (Type.FLOAT, Type.FLOAT)]
    if name in ("eq", "ne"):
        return [(t, t) for t in Type]
    if name == "where":
        return [(Type.BOOL, kind, kind)]
    cast = {"floor": Type.FLOAT, "to_int": Type.BOOL, "to_float": Type.INT}.get(name, kind)
    return [(cast,) * OPERATORS[name]]


def bits(value: float) -> object:
    if isinstance(value, float):
        return "nan" if value != value else struct.pack("d", value)
    return value


VALUES = st.fixed_dictionaries({
    **{name: st.sampled_from(_SPECIAL[Type.INT]) for name in "xy"},
    **{name: st.sampled_from(_SPECIAL[Type.FLOAT]) for name in "fg"},
    **{name: st.booleans() for name in "pr"},
})  # fmt: skip


@pytest.mark.parametrize("kind", list(Type))
@given(data=st.data())
def test_the_value_stays_bit_for_bit(kind: Type, data: st.DataObject) -> None:
    graph, values = data.draw(graphs(kind)), data.draw(VALUES)
    folded = fold(graph)
    assert folded.type is graph.type
    assert bits(evaluate(folded, values)) == bits(evaluate(graph, values))


@pytest.mark.parametrize("kind", list(Type))
@given(data=st.data())
def test_checked_expressions_are_already_folded(kind: Type, data: st.DataObject) -> None:
    node = compile(data.draw(expressions(kind, SCOPE)))
    assert fold(node) is node


@pytest.mark.parametrize("kind", list(Type))
@given(data=st.data())
def test_an_expression_of_constants_becomes_its_value(kind: Type, data: st.DataObject) -> None:
    assert isinstance(compile(data.draw(expressions(kind, Scope({})))), Const)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (op("add", X, const(0)), X),
        (op("add", const(0), X), X),
        (op("sub", X, X), const(0)),
        (op("sub", const(0), X), op("neg", X)),
        (op("mul", X, const(0)), const(0)),
        (op("mul", const(1.0), F), F),
        (op("truediv", F, const(1.0)), F),
        (op("pow", F, const(2.0)), op("mul", F, F)),
        (op("neg", op("neg", F)), F),
        (op("abs", op("neg", F)), op("abs", F)),
        (op("and", P, TRUE), P),
        (op("and", FALSE, P), FALSE),
        (op("or", P, P), P),
        (op("or", P, TRUE), TRUE),
        (op("xor", P, TRUE), op("not", P)),
        (op("and", X, const(-1)), X),
        (op("not", op("not", P)), P),
        (op("not", op("lt", X, Y)), op("ge", X, Y)),
        (op("where", TRUE, F, G), F),
        (op("where", P, F, F), F),
        (op("where", P, FALSE, TRUE), op("not", P)),
        (op("le", X, X), TRUE),
        (op("min", F, F), F),
        (op("shl", X, const(0)), X),
        (op("floordiv", X, const(0)), const(0)),
        (op("exp", const(0.0)), const(1.0)),
        (op("truediv", const(-1.0), const(0.0)), const(-math.inf)),
        (op("mul", const(math.inf), const(0.0)), const(math.nan)),
        (op("truediv", F, const(-0.0)), op("mul", F, const(-math.inf))),
    ],
)
def test_identities(graph: Expr, expected: Expr) -> None:
    assert fold(graph) is expected


@pytest.mark.parametrize(
    "graph",
    [
        op("mul", F, const(0.0)),  # NaN and infinity stay
        op("add", F, const(0.0)),  # minus zero becomes zero
        op("sub", F, F),
        op("mod", F, const(1.0)),
        op("mod", X, const(2)),
        op("floordiv", X, const(-1)),
        op("or", X, const(1)),
        op("eq", F, F),
        op("not", op("lt", F, G)),  # with NaN neither f < g nor f >= g
        op("add", op("add", F, const(0.1)), const(0.2)),
        op("mul", const(2**62), const(4)),  # beyond 64 bits
    ],
)
def test_what_must_stay(graph: Expr) -> None:
    assert fold(graph) is graph


def test_deep_graphs_fold_without_recursion() -> None:
    node: Expr = X
    for _ in range(20_000):
        node = op("add", node, const(0))
    assert isinstance(node, Op)
    assert fold(node) is X
