"""Nodes are interned: equal expressions are one object, whatever way they came."""

from __future__ import annotations

import math
import pickle

import pytest
from expression_strategies import expressions
from hypothesis import given
from language_world import SCOPE, compile

from flashgen.lang.nodes import FALSE, TRUE, Type, const, op, var


@given(text=expressions(Type.FLOAT, SCOPE))
def test_what_another_process_gets_is_the_node_itself(text: str) -> None:
    node = compile(text)
    assert pickle.loads(pickle.dumps(node)) is node


@pytest.mark.parametrize("value", [True, False, 0, 1, -1, 1.0, 0.0, -0.0, math.inf, math.nan])
def test_so_are_constants_of_each_type(value: bool | int | float) -> None:
    assert pickle.loads(pickle.dumps(const(value))) is const(value)


def test_so_are_parts_of_what_is_sent_and_long_sums() -> None:
    x = var("x", Type.INT)
    total = x
    for n in range(300):
        total = op("add", total, op("mul", x, const(n)))
    assert pickle.loads(pickle.dumps((total, {"x": x}, [TRUE, FALSE]))) == (total, {"x": x}, [TRUE, FALSE])
