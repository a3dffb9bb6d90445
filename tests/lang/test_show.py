"""Shown text parses back to the same graph, with no parenthesis too many."""

from __future__ import annotations

import pytest
from expression_strategies import expressions
from hypothesis import given
from hypothesis import strategies as st
from language_world import AT, SCOPE, compile

from flashgen.lang import check
from flashgen.lang.nodes import Expr, Type
from flashgen.lang.scope import Scope
from flashgen.lang.show import show


@pytest.mark.parametrize("kind", list(Type))
@given(data=st.data())
def test_round_trip(kind: Type, data: st.DataObject) -> None:
    node = compile(data.draw(expressions(kind, SCOPE, depth=4)))
    assert compile(show(node)) is node


@pytest.mark.parametrize("kind", list(Type))
@given(data=st.data())
def test_round_trip_with_lets(kind: Type, data: st.DataObject) -> None:
    first = data.draw(expressions(Type.INT, SCOPE, depth=2))
    lets = (("d", compile(first)),)
    scope = Scope({**SCOPE.names, **dict(lets)}, SCOPE.tensors)
    node = check.expression(data.draw(expressions(kind, scope)), scope, AT)
    assert check.expression(show(node, lets), scope, AT) is node


@pytest.mark.parametrize(
    "text",
    [
        "k <= q and q - k <= 1023",
        "score - abs(q - k)",
        "q - (k - h)",
        "q - k - h",
        "-q ** 3",
        "(-q) ** 3",
        "q ** -h",
        "(q * k) % 3 + q * (k % 3)".replace("(q * k) %", "q * k %"),
        "cap * tanh(score / cap)",
        "rel[h, clamp(q - k, -3, 3) + 3]",
        "not flag and (flag or q < k)",
        "(q < k) == flag",
        "q & 3 | k ^ 5",
        "~q << 2",
        "score * (2 * q)",
        "q * 1.0 + k",
        "where(flag, q, score)",
        "2.0 * score + (q < k)",
    ],
)
def test_minimal_text_is_shown_as_it_was_written(text: str) -> None:
    assert show(compile(text)) == text


def test_the_smallest_integer() -> None:
    node = compile("-9223372036854775807 - 1")
    assert compile(show(node)) is node


def test_lets_are_shown_by_name() -> None:
    d = compile("q - k")
    lets: tuple[tuple[str, Expr], ...] = (("d", d), ("zero", compile("0")))
    assert show(compile("abs(q - k) <= 0 and q - k != h"), lets) == "abs(d) <= 0 and d != h"
