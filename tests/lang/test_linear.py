from __future__ import annotations

import pytest
from expression_strategies import expressions
from hypothesis import given
from hypothesis import strategies as st
from language_world import SCOPE, TENSORS, compile, pairs

from flashgen.lang.evaluate import evaluate
from flashgen.lang.linear import Linear, difference, expression, linear
from flashgen.lang.nodes import Const, Type
from flashgen.lang.traversal import walk

INTS = expressions(Type.INT, SCOPE)


def value(form: Linear, at: dict) -> int:
    total = form.constant + sum(c * evaluate(atom, at, TENSORS) for atom, c in form.terms.items())
    # Integers wrap at 64 bits.
    return (total + 2**63) % 2**64 - 2**63


@given(text=INTS, at=pairs())
def test_a_form_has_the_value_of_its_expression(text: str, at: dict) -> None:
    expr = compile(text, Type.INT)
    assert value(linear(expr), at) == evaluate(expr, at, TENSORS)


@given(text=INTS, at=pairs())
def test_a_form_written_out_has_the_same_value(text: str, at: dict) -> None:
    expr = compile(text, Type.INT)
    assert evaluate(expression(linear(expr)), at, TENSORS) == evaluate(expr, at, TENSORS)


@given(left=INTS, right=INTS, factor=st.integers(-4, 4), at=pairs())
def test_sums_and_multiples(left: str, right: str, factor: int, at: dict) -> None:
    a, b = linear(compile(left, Type.INT)), linear(compile(right, Type.INT))
    form = a * factor - b
    assert 0 not in form.terms.values()
    assert value(form, at) == value(Linear({}, factor * value(a, at) - value(b, at)), at)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("q + 3", "q", 3),
        ("2 * (q - k) + k", "q + q - k", 0),
        ("doc[b, q] + 1", "doc[b, q]", 1),
        ("doc[b, q]", "doc[b, k]", None),
        ("q", "k", None),
        ("q * k", "k", None),
    ],
)
def test_difference_is_known_without_any_value(left: str, right: str, expected: int | None) -> None:
    assert difference(compile(left), compile(right)) == expected


def test_only_integers_are_compared() -> None:
    assert difference(compile("score"), compile("score")) is None


@pytest.mark.parametrize("text", ["q - k * 2**62 * 2", "q * -2**62 * 2 + k", "q - 2**62 * n - 2**62 * n"])
def test_no_constant_of_a_form_passes_64_bits(text: str) -> None:
    expr = compile(text)
    written_out = expression(linear(expr))
    constants = [node.value for node in walk(written_out) if isinstance(node, Const)]
    assert -(2**63) in constants
    assert all(-(2**63) <= value < 2**63 for value in constants)
    for at in ({"q": 3, "k": 5, "n": 7}, {"q": -3, "k": 4, "n": 1}):
        assert evaluate(written_out, at) == evaluate(expr, at)
