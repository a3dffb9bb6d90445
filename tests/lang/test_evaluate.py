"""Evaluation against Python itself, and where the language differs from it."""

from __future__ import annotations

import math
import re

import pytest
from expression_strategies import expressions
from hypothesis import assume, given
from hypothesis import strategies as st
from language_world import SCOPE, TENSORS, compile, pairs

from flashgen.lang.evaluate import evaluate
from flashgen.lang.nodes import Type, const, op, var
from flashgen.lang.scope import Scope

INT64 = st.integers(-(2**63), 2**63 - 1)
X, Y = var("x", Type.INT), var("y", Type.INT)


def value(text: str, **variables: float) -> bool | int | float:
    return evaluate(compile(text), variables, TENSORS)


@pytest.mark.parametrize(
    ("text", "variables", "expected"),
    [
        ("q // k", {"q": -7, "k": 2}, -4),
        ("q % k", {"q": -7, "k": 2}, 1),
        ("q % k", {"q": 7, "k": -2}, -1),
        ("q // k + q % k", {"q": 7, "k": 0}, 0),
        ("score // 0.5", {"score": -0.75}, -2.0),
        ("score % 0.5", {"score": -0.75}, 0.25),
        ("q << k", {"q": 3, "k": -5}, 3),
        ("q << k", {"q": 1, "k": 99}, -(2**63)),
        ("q >> k", {"q": -5, "k": 1}, -3),
        ("q >> k", {"q": -5, "k": 99}, -1),
        ("sum(i, n, i * q)", {"n": 4, "q": 3}, 18),
        ("sum(i, n, sum(j, n, 10 * i + j))", {"n": 2}, 22),
        ("sum(i, n, q)", {"n": -3, "q": 5}, 0),
        ("sum(i, n, score)", {"n": 0, "score": 0.5}, 0.0),
        ("any(i, n, q == off[i])", {"n": 3, "q": -2}, True),
        ("any(i, n, q == off[i])", {"n": 2, "q": -2}, False),
        ("any(i, n, flag)", {"n": 0, "flag": True}, False),
        ("all(i, n, q > i)", {"n": 3, "q": 2}, False),
        ("all(i, n, q > i)", {"n": -1, "q": -9}, True),
        ("sum(i, 300, i % 2)", {}, 150),
        ("off[q]", {"q": -5}, 0),
        ("off[q]", {"q": 99}, -2),
        ("doc[q, off[k]]", {"q": 1, "k": 1}, 1),
        ("1 / score", {"score": 0.0}, math.inf),
        ("1 / score", {"score": -0.0}, -math.inf),
        ("exp(score)", {"score": 1e9}, math.inf),
        ("log(score)", {"score": 0.0}, -math.inf),
        ("score ** -1", {"score": 0.0}, math.inf),
        ("sigmoid(score)", {"score": -1e9}, 0.0),
        ("floor(score)", {"score": -0.5}, -1),
        ("ceil(score)", {"score": -0.5}, 0),
        ("ceil(score)", {"score": 1.25}, 2),
        ("floor(score)", {"score": math.inf}, 2**63 - 1),
        ("floor(score)", {"score": -1e30}, -(2**63)),
        ("ceil(rel[h, 0] / 0)", {"h": 3}, 2**63 - 1),
        ("ceil(rel[h, 0] / 0)", {"h": 0}, 1 - 2**63),
        ("ceil(inf)", {}, 2**63 - 1),
        ("ceil(q) + sign(q)", {"q": -3}, -4),
        ("sign(score)", {"score": 0.25}, 1.0),
        ("sign(score)", {"score": -0.0}, 0.0),
        ("log1p(q)", {"q": 0}, 0.0),
        ("erf(score)", {"score": math.inf}, 1.0),
        ("sin(score) + cos(score) + tan(score)", {"score": 0.0}, 1.0),
        ("clamp(q, 3, 1)", {"q": 9}, 1),
        ("0 < q < 3", {"q": 2}, True),
        ("flag ^ (q < 3)", {"flag": True, "q": 2}, False),
        ("~q", {"q": 5}, -6),
        ("q if flag else score", {"q": 3, "flag": True, "score": 0.5}, 3.0),
    ],
)
def test_values(text: str, variables: dict, expected: float) -> None:
    result = value(text, **variables)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    "text", ["log(score)", "sqrt(score)", "score ** 0.5", "min(log(score), 3.0)", "score % 0.0", "sin(score / 0)"]
)
def test_outside_a_domain_is_nan(text: str) -> None:
    assert math.isnan(value(text, score=-2.0))


@given(INT64, INT64, st.sampled_from(["add", "sub", "mul"]))
def test_ints_wrap_at_64_bits(x: int, y: int, name: str) -> None:
    exact = {"add": x + y, "sub": x - y, "mul": x * y}[name]
    result = evaluate(op(name, X, Y), {"x": x, "y": y})
    assert -(2**63) <= result < 2**63
    assert (result - exact) % 2**64 == 0


_INTS_ALONE = Scope({"q": var("q", Type.INT), "k": var("k", Type.INT)})
_PYTHON = {
    "min": min, "max": max, "abs": abs, "clamp": lambda x, low, high: min(max(x, low), high),
    "floor": math.floor, "ceil": math.ceil, "sign": lambda x: (x > 0) - (x < 0),
}  # fmt: skip


@given(expressions(Type.INT, _INTS_ALONE), st.integers(-50, 50), st.integers(-50, 50))
def test_ints_agree_with_python(text: str, q: int, k: int) -> None:
    """Python computes the same wherever it computes at all: it refuses zero divisors and negative shift counts, and
    writes any, all and sum otherwise.
    """
    assume(not re.search(r"\b(any|all|sum)\(", text))
    python = {**_PYTHON, "where": lambda test, x, y: x if test else y, "q": q, "k": k}
    try:
        expected = _by_python(text, python)
    except (ZeroDivisionError, ValueError):
        return
    assert evaluate(compile(text), {"q": q, "k": k}) == expected


def _by_python(text: str, names: dict) -> int:
    # ~True is -2 in Python.
    return eval(text.replace("(~ ", "(not "), {"__builtins__": {}}, names)  # noqa: S307


@given(expressions(Type.FLOAT, SCOPE), pairs())
def test_the_type_of_the_value_is_the_type_of_the_node(text: str, pair: dict) -> None:
    assert isinstance(evaluate(compile(text, Type.FLOAT), pair, TENSORS), float)


def test_a_name_without_a_value_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="score"):
        evaluate(compile("score + 1"), {})


def test_deep_graphs_are_evaluated_without_recursion() -> None:
    node = X
    for _ in range(20_000):
        node = op("sub", const(1), node)
    assert evaluate(node, {"x": 5}) == 5
