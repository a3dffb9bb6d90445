"""What parts an expression has, and what becomes of it where names stand for others."""

from __future__ import annotations

import pytest
from language_world import AT

from flashgen.lang.parse import parse
from flashgen.lang.syntax import leftmost, with_names
from flashgen.lang.written import written


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("score", "a + b"),
        ("-score", "-(a + b)"),
        ("score * score - k", "(a + b) * (a + b) - k"),
        ("where(k < q <= score, rel[h, k], score if t else 0)", "where(k < q <= a + b, rel[h, k], a + b if t else 0)"),
        ("rel[score, k] + floor(score)", "rel[a + b, k] + floor(a + b)"),
    ],
)
def test_what_names_stand_for(text: str, expected: str) -> None:
    assert written(with_names(parse(text, AT), {"score": parse("a + b", AT)})) == expected


def test_what_reads_no_name_stays_as_it_is() -> None:
    syntax = parse("abs(q - k) + q * 2", AT)
    assert with_names(syntax, {"score": parse("a", AT)}) is syntax


def test_names_in_a_long_sum() -> None:
    terms = ["k"] * 1900
    found = with_names(parse(" + ".join(["score", *terms]), AT), {"score": parse("a - b", AT)})
    assert written(found) == " + ".join(["a - b", *terms])


def test_the_leftmost_operand_and_what_is_done_to_it() -> None:
    first, operations = leftmost(parse("a + b * c - d", AT))
    assert written(first) == "a"
    assert [operation.symbol for operation in operations] == ["+", "-"]
    first, operations = leftmost(parse("a - b + c", AT), "+")
    assert written(first) == "a - b"
    assert [operation.symbol for operation in operations] == ["+"]
