"""What an author wrote, from its syntax: it parses back to the same, and nothing but nodes is left of the text."""

from __future__ import annotations

import pytest
from expression_strategies import expressions
from hypothesis import given
from hypothesis import strategies as st
from language_world import AT, SCOPE

from flashgen.lang.check import expression
from flashgen.lang.nodes import Type
from flashgen.lang.parse import parse
from flashgen.lang.written import written


@pytest.mark.parametrize("kind", list(Type))
@given(data=st.data())
def test_round_trip(kind: Type, data: st.DataObject) -> None:
    text = data.draw(expressions(kind, SCOPE, depth=4))
    once = written(parse(text, AT))
    assert written(parse(once, AT)) == once
    assert expression(once, SCOPE, AT) is expression(text, SCOPE, AT)


@pytest.mark.parametrize(
    "text",
    [
        "score + rel[h, clamp(q - k, -W, W) + W]",
        "(abs(q - k) <= W) | is_global[b, k] | is_global[b, q]",
        "k <= q & k > q - 5",
        "0 <= q - k < 5",
        "(k <= q) == (k > 3)",
        "not (a and b) or c",
        "-x ** 2",
        "(-x) ** 2",
        "2 ** -x ** 2",
        "a if t else b if u else c",
        "(a if t else b) + c",
        "q - (k - h)",
        "64 + 0.5",
        "where(k <= q, score, -inf)",
        "True",
        "-9223372036854775808 < k",
    ],
)
def test_what_has_no_needless_parentheses_stays(text: str) -> None:
    assert written(parse(text, AT)) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("((k))<=(q)", "k <= q"),
        ('k <= q # """; import os', "k <= q"),
        ("k # one\n  <= # two\r\n q", "k <= q"),
        ("f(a,b,)", "f(a, b)"),
        ("0x40 + 1_000", "64 + 1000"),
    ],
)
def test_comments_spaces_and_spellings_go(text: str, expected: str) -> None:
    assert written(parse(text, AT)) == expected


def test_a_long_sum_is_no_deep_recursion() -> None:
    text = " - ".join(["score", *["k"] * 1900])
    assert written(parse(text, AT)) == text
