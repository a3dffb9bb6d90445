"""Lets that each read the one before them twice: written as a tree, forty of them would have 2**40 nodes."""

from __future__ import annotations

import pytest
from packages import whole
from spec_shelf import Spec, doubling

from flashgen.codegen import render
from flashgen.codegen.pairwise import render as render_pairwise
from flashgen.errors import ExpressionError
from flashgen.explain.describe import describe
from flashgen.spec import load
from flashgen.spec.digest import digest

LEVELS = 40
T = {"t": {"shape": ["heads", "n"], "dtype": "float32", "grad": True}}
U = {"u": {"shape": ["m"], "dtype": "int32"}}

CASES: dict[str, tuple[str, str, Spec]] = {
    "sums of positions, a bound": ("q + 1", "{p} + {p}", {"mask": "k <= {a}"}),
    "sums of positions, a residual": ("q + k", "{p} + {p}", {"mask": "{a} % 3 == 0"}),
    "sums of positions, a score": ("q - k", "{p} + {p}", {"score": "score + {a}"}),
    "products of positions": ("q - k", "{p} * {p} + 1", {"score": "score + 0.001 * ({a} % 7)"}),
    "sums of scores": ("score", "{p} + {p}", {"score": "{a}"}),
    "products of scores": ("score", "0.5 * {p} * {p} + 0.1", {"score": "{a}"}),
    "a tanh of products": ("score", "{p} * {p}", {"score": "tanh({a})"}),
    "tanh": ("score", "tanh({p}) + 0.5 * {p}", {"score": "{a}"}),
    "a learned bias": ("score + t[h, q % n]", "{p} * t[h, k % n] - {p} / 2", {"inputs": T, "score": "{a}"}),
    "extrema": ("q - k", "max({p}, min({p}, k - {i}))", {"mask": "{a} >= 0"}),
    "extrema in a score": ("q - k", "max({p} - 1, min({p}, k - {i}))", {"score": "score + 0.1 * {a}"}),
    "extrema of negations": ("q - k", "max(-{p}, min({p}, k - {i}))", {"mask": "{a} >= 0"}),
    "extrema of scores": ("score", "max({p} - 1, min({p}, 0.5 * {p}))", {"score": "{a}"}),
    "choices": ("score", "where(k % {i} == 0, {p} + 1, {p} * 0.5)", {"score": "{a}"}),
    "choices by learned scores": (
        "score + t[h, q % n]",
        "where({p} > 0, {p} + 1, {p} * 0.5)",
        {"inputs": T, "score": "{a}"},
    ),
    "or": ("k <= q", "({p} & (k % {i} < 5)) | ({p} & (k > {i}))", {"mask": "{a}"}),
    "xor": ("k <= q", "({p} ^ (k % {i} < 5)) | ~({p} & (k > {i}))", {"mask": "{a}"}),
    "and": ("k <= q", "({p} & (k >= {i} - q)) & ({p} & (k > {i} - b))", {"mask": "{a}"}),
    "conditions": ("k <= q", "({p} if q > {i} else not {p})", {"mask": "{a}"}),
    "absolute values": ("q - k", "abs({p} - {i}) - abs({p} + {i})", {"mask": "{a} < 5"}),
    "gathers of rows": ("u[q % m]", "u[({p} + {p} + {i}) % m]", {"inputs": U, "mask": "{a} <= k"}),
    "gathers of pairs": ("u[q % m] + k", "u[{p} % m] + {p}", {"inputs": U, "mask": "{a} % 2 == 0"}),
    "floats of rows": ("0.01 * q", "{p} * 0.5 + sqrt(abs({p}))", {"score": "score * (1 + {a})"}),
    "integers of rows": ("q // 2", "({p} * 3 + {p}) % 1001", {"mask": "k <= {a}"}),
    "floats of a call": (
        "c",
        "{p} * 0.5 + {p} / 3",
        {"params": {"c": {"value": 0.5, "runtime": True}}, "score": "score * {a}"},
    ),
    "quotients": ("score", "{p} / (1 + {p} * {p})", {"score": "{a}"}),
    "powers": ("abs(score) + 1", "{p} ** 0.5 + {p} ** 0.25", {"score": "{a}"}),
}


# Each takes a second or two.
@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", CASES)
def test_they_cost_what_they_are(what: str) -> None:
    first, step, rest = CASES[what]
    variant = load({"name": "shelf", **doubling(LEVELS, first, step, rest)})
    text = whole(render(variant))
    assert len(text) < 300_000
    assert len(render_pairwise(variant)) < 100_000
    assert digest(variant)
    assert describe(variant, scheduled=True)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("terms", [512, 900])
def test_a_sum_is_long_and_not_deep(terms: int) -> None:
    text = " + ".join(f"k % {i + 2}" for i in range(terms // 2))
    floats = " + ".join(["score", *("0.5 * q" for _ in range(terms // 2))])
    assert render(load({"name": "shelf", "mask": f"{text} > q", "score": floats}))


NESTED = {
    "gathers": "t[{}]",
    "parentheses": "(k - {})",
    "choices": "(k if {} > 3 else q)",
    "calls": "min({}, k)",
    "signs": "-{}",
}


@pytest.mark.parametrize("what", NESTED)
@pytest.mark.parametrize("depth", [30, 61, 64, 90, 300])
def test_what_is_nested_is_built_or_refused(what: str, depth: int) -> None:
    text = "q"
    for _ in range(depth):
        text = NESTED[what].format(text)
    inputs = {"t": {"shape": ["n"], "dtype": "int32"}} if what == "gathers" else {}
    try:
        variant = load({"name": "shelf", "inputs": inputs, "mask": f"k <= {text}"})
    except ExpressionError as error:
        assert depth > 50 and "nested more than 64 deep; expected parts named with 'let'" in str(error)
    else:
        assert render(variant)
