"""Bitwise operators that take an operand from a comparison are pointed out, with what is read and what may be meant."""

from __future__ import annotations

import pytest

from flashgen.errors import Location
from flashgen.lang.doubts import doubts
from flashgen.lang.parse import parse

AT = Location("v.yaml", 2, 7)

READ = {
    "k <= q & k > q - 5": ("14: '&'", "k <= (q & k) > q - 5", "(k <= q) & (k > q - 5)"),
    "k <= q | k < 4": ("14: '|'", "k <= (q | k) < 4", "(k <= q) | (k < 4)"),
    "k < 3 ^ q < 3": ("13: '^'", "k < (3 ^ q) < 3", "(k < 3) ^ (q < 3)"),
    "a & k <= q": ("9: '&'", "(a & k) <= q", "a & (k <= q)"),
    "k <= q & a": ("14: '&'", "k <= (q & a)", "(k <= q) & a"),
    "k <= q & a & q < 9": ("18: '&'", "k <= (q & a & q) < 9", "(k <= q) & a & (q < 9)"),
    "a == b & c == d & e == f": (
        "14: '&'", "a == (b & c) == (d & e) == f", "(a == b) & (c == d) & (e == f)",
    ),
    "where(k <= q & a, 1, 2)": ("20: '&'", "k <= (q & a)", "(k <= q) & a"),
}  # fmt: skip


@pytest.mark.parametrize("text", READ)
def test_what_is_read_and_what_may_be_meant(text: str) -> None:
    place, read, meant = READ[text]
    (said,) = doubts(parse(text, AT))
    assert said.startswith(f"v.yaml:2:{place} binds tighter than the comparisons beside it: this is '{read}'; ")
    assert f"write '{meant}', " in said
    assert list(doubts(parse(read, AT))) == list(doubts(parse(meant, AT))) == []


@pytest.mark.parametrize(
    "text",
    [
        "(k <= q) & (k > q - 5)",
        "(k & 7) == 0",
        "k <= q and k > q - 5",
        "a & b",
        "k <= q + 5",
        "0 <= q - k < 5",
        "a | b & c",
    ],
)
def test_what_is_clear_is_not_doubted(text: str) -> None:
    assert list(doubts(parse(text, AT))) == []


def test_many_tests_without_parentheses() -> None:
    tests = ["k <= q", *(f"k != {i}" for i in range(600))]
    (said,) = doubts(parse(" & ".join(tests), AT))
    assert " & ".join(f"({test})" for test in tests) in said
    (said,) = doubts(parse(" & ".join(["k <= q", *["a"] * 1900]), AT))
    assert " & ".join(["(k <= q)", *["a"] * 1900]) in said


@pytest.mark.parametrize(("text", "column", "index"), [("x[-1]", 3, "-1"), ("score + rel[h, -W[-2]]", 19, "-2")])
def test_an_index_that_counts_from_the_end(text: str, column: int, index: str) -> None:
    (said,) = doubts(parse(text, AT))
    assert said.startswith(f"v.yaml:{AT.line}:{(AT.column or 1) + column - 1}: the index '{index}' of ")
    assert said.endswith(" reads the element at 0, the nearest that there is; the last of a dimension n is at 'n - 1'")


@pytest.mark.parametrize(("text", "column"), [("q / 64 == k / 64", 9), ("(k <= q) & ((k / W) != (q / W))", 22)])
def test_quotients_that_are_compared(text: str, column: int) -> None:
    (said,) = doubts(parse(text, AT))
    assert said.startswith(f"v.yaml:2:{column}: ")
    assert said.endswith("are fractions, which '/' gives; where numbers of blocks are compared write '//'")


@pytest.mark.parametrize("text", ["score + (k > q) * -inf", "score - inf * (k > q)", "score + (k > q) * (-inf)"])
def test_a_product_with_infinity(text: str) -> None:
    (said,) = doubts(parse(text, AT))
    assert "is NaN where the other factor is 0; " in said


@pytest.mark.parametrize(
    "text", ["where(k > q, -inf, score)", "score - inf", "min(inf, q) * 2", "-inf if k > q else score"]
)
def test_infinity_that_is_no_factor(text: str) -> None:
    assert list(doubts(parse(text, AT))) == []


@pytest.mark.parametrize("text", ["q // 64 == k // 64", "q / 64 < k / 64", "x[h] / 2 == 1.5"])
def test_quotients_that_may_be_meant(text: str) -> None:
    assert list(doubts(parse(text, AT))) == []


@pytest.mark.parametrize("text", ["x[n - 1]", "x[-k]", "x[-0]", "clamp(q - k, -1, 1)", "x[-1 + h]"])
def test_other_indices_are_no_doubt(text: str) -> None:
    assert list(doubts(parse(text, AT))) == []
