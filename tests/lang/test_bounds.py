from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from language_world import RUNTIME, SIZES, TENSORS, compile, pairs
from mask_strategies import drawn

from flashgen.lang import bounds
from flashgen.lang.bounds import KeyRange, always, key_range, row_range
from flashgen.lang.evaluate import evaluate, evaluator
from flashgen.lang.linear import difference
from flashgen.lang.monotone import increasing_in_q
from flashgen.lang.nodes import Expr, Type
from flashgen.lang.traversal import variables

KEYS = range(SIZES["kv_len"])


def seen(mask: Expr, row: dict) -> list[int]:
    return [k for k in KEYS if evaluate(mask, {**row, "k": k}, TENSORS)]


def seen_in_range(found: KeyRange, row: dict) -> list[int]:
    low = max([0, *(evaluate(bound, row, TENSORS) for bound in found.lower)])
    high = min([len(KEYS) - 1, *(evaluate(bound, row, TENSORS) for bound in found.upper)])
    return [k for k in KEYS if low <= k <= high and evaluate(found.residual, {**row, "k": k}, TENSORS)]


@given(text=drawn("mask"), rows=st.lists(pairs(), min_size=3, max_size=8))
def test_the_range_and_the_residual_are_the_mask(text: str, rows: list[dict]) -> None:
    mask = compile(text, Type.BOOL)
    found = key_range(mask)
    event("closed" if found.closed else "bounds and residual" if found.lower or found.upper else "residual alone")
    assert not any("k" in variables(bound) for bound in (*found.lower, *found.upper))
    for row in rows:
        assert seen_in_range(found, row) == seen(mask, row)


# One side, the other, both, none of it, every other key, a float, and what is free of k; and more of the kind.
PARTS = (
    "k <= q",
    "k >= q - 2",
    "(k >= q - 3) & (k <= q + 1)",
    "abs(q - k) >= 2",
    "k % 2 == 0",
    "k * 0.5 < q * 0.25",
    "flag",
)
MORE = (
    *PARTS, "k < n", "k == q", "2 * k > q + 1", "3 - k < n", "abs(q - k) <= n", "max(k, q) <= 3", "min(k, 2) >= q - 1",
    "q < 2",
)  # fmt: skip
JOINED = (
    "({one}) & ({two})", "({one}) | ({two})", "not (({one}) & ({two}))", "not (({one}) | ({two}))",
    "where(flag, {one}, {two})", "where(q > 2, {one}, {two})", "where(k > 3, {one}, {two})",
)  # fmt: skip


def pairs_of(q_len: int, bottom_right: bool) -> list[dict]:
    """Some pairs, whatever the params."""
    first = SIZES["kv_len"] - q_len if bottom_right else 0
    sizes = {**SIZES, **RUNTIME, "q_len": q_len, "b": 1, "h": 2, "kv_h": 1}
    return [
        {**sizes, "q": first + row, "k": k, "flag": flag, "n": n}
        for row in range(q_len) for k in (0, 2, 3, 6) for flag, n in ((False, 1), (True, 3))
    ]  # fmt: skip


@pytest.mark.parametrize("joined", JOINED)
@pytest.mark.parametrize("one", MORE)
def test_what_two_masks_say_together_of_keys_and_of_rows(one: str, joined: str) -> None:
    """Rows also where there are more queries than keys."""
    for two in PARTS:
        mask = compile(joined.format(one=one, two=two), Type.BOOL)
        shows = evaluator(mask)
        for q_len, bottom_right in ((5, True), (9, True), (5, False)):
            keys, rows = key_range(mask), row_range(mask, bottom_right)
            assert not any("k" in variables(bound) for bound in (*keys.lower, *keys.upper))
            assert not any("q" in variables(bound) for bound in (*rows.lower, *rows.upper))
            in_keys, in_rows = within(keys), within(rows)
            shift = SIZES["kv_len"] - q_len if bottom_right else 0
            for pair in pairs_of(q_len, bottom_right):
                shown = shows(pair, TENSORS)
                assert in_keys(pair, pair["k"]) == in_rows(pair, pair["q"] - shift) == shown, (two, pair)


def within(found: KeyRange) -> Callable[[dict, int], bool]:
    """Whether a place is inside the bounds and the residual shows the pair."""
    lower, upper = (list(map(evaluator, each)) for each in (found.lower, found.upper))
    rest = evaluator(found.residual)
    return lambda pair, place: (
        all(low(pair, TENSORS) <= place for low in lower)
        and all(place <= high(pair, TENSORS) for high in upper)
        and bool(rest(pair, TENSORS))
    )


@pytest.mark.parametrize(
    ("text", "lower", "upper"),
    [
        ("k <= q", None, "q"),
        ("k < q", None, "q - 1"),
        ("q >= k", None, "q"),
        ("not (k > q)", None, "q"),
        ("(k <= q) & (q - k <= 9)", "q - 9", "q"),
        ("abs(q - k) <= W", "q - 3", "q + 3"),
        ("(k <= q) & (k <= q - 2)", None, "q - 2"),
        ("(k <= q - 2) & (k <= q)", None, "q - 2"),
        ("(k >= q) & (k >= q - 2)", "q", None),
        ("(k >= q - 2) & (k >= q)", "q", None),
        ("(k <= q) | (k < n)", None, "max(q, n - 1)"),
        ("2 * k <= q", None, "q // 2"),
        ("k >= off[doc[b, q]]", "off[doc[b, q]]", None),
        ("where(flag, k <= q, k <= n)", None, "where(flag, q, n)"),
        ("where(flag, k >= n, k <= q)", "where(flag, n, 0)", "where(flag, kv_len - 1, q)"),
        ("flag | (k <= q)", None, "where(flag, kv_len - 1, q)"),
        ("any(i, n, off[i] == q)", None, "where(any(i, n, off[i] == q), kv_len - 1, -1)"),
        ("k <= q + sum(i, n, off[i])", None, "q + sum(i, n, off[i])"),
        ("max(k, n) <= q", None, "min(q, where(n <= q, kv_len - 1, -1))"),
    ],
)
def test_bounds_in_closed_form(text: str, lower: str | None, upper: str | None) -> None:
    found = key_range(compile(text, Type.BOOL))
    assert found.closed
    assert found.lower_bound is (lower and compile(lower))
    assert found.upper_bound is (upper and compile(upper))


@pytest.mark.parametrize(
    "text",
    ["doc[b, q] == doc[b, k]", "(q - k) % 2 == 0", "keep[b, k]", "(k < 2) | (k > 4)", "k != q", "abs(q - k) >= W"],
)
def test_what_is_no_interval_stays_residual(text: str) -> None:
    mask = compile(text, Type.BOOL)
    assert key_range(mask) == KeyRange(residual=mask)


@given(
    left=drawn("line", 3),
    right=drawn("line", 3),
    other=drawn("mask", 2),
    slack=st.integers(-2, 2),
    at=st.lists(pairs(), min_size=3, max_size=8),
)
def test_always_never_lies(left: str, right: str, other: str, slack: int, at: list[dict]) -> None:
    mask, claim = compile(f"({left} <= {right}) & {other}"), compile(f"{right} - {left} + {slack}", Type.INT)
    if always(mask, claim):
        event("claimed")
        for row in at:
            assert all(evaluate(claim, {**row, "k": k}, TENSORS) >= 0 for k in seen(mask, row))


@given(slack=st.integers(-3, 3), width=st.integers(0, 5))
def test_always_reads_signs_off_bounds(slack: int, width: int) -> None:
    window = compile(f"(k <= q) & (q - k <= {width})", Type.BOOL)
    assert always(window, compile(f"q - k + {slack}")) == (slack >= 0)
    assert always(window, compile(f"k - q + {width} + {slack}")) == (slack >= 0)
    assert not always(window, compile("q - 2 * k"))


@given(text=drawn("row", 4), at=pairs())
def test_increasing_in_q_never_lies(text: str, at: dict) -> None:
    expr = compile(text, Type.INT)
    sign = increasing_in_q(expr)
    event(f"sign {sign}")
    values = [evaluate(expr, {**at, "q": q}, TENSORS) for q in range(-8, 12)]
    steps = [after - before for before, after in pairwise(values)]
    assert sign is None or all(step * sign >= 0 if sign else step == 0 for step in steps)


@pytest.mark.parametrize(
    ("text", "sign"),
    [("q", 1), ("n - q", -1), ("min(q + n, 9)", 1), ("q // 3", 1), ("q // (-3)", -1), ("n", 0), ("abs(q)", None)],
)
def test_increasing_in_q(text: str, sign: int | None) -> None:
    assert increasing_in_q(compile(text)) == sign


@pytest.mark.parametrize("text", ["0 <= clamp(k, 2, 9)", "min(k, 5) <= 9", "(5 <= 9) | (k < 3)", "k <= kv_len - 1"])
def test_what_holds_for_every_key_bounds_none(text: str) -> None:
    assert key_range(compile(text, Type.BOOL)).upper == ()


def test_many_bounds_are_found_with_few_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(bounds, "difference", lambda a, b: asked.append(a) or difference(a, b))
    found = key_range(compile(" & ".join(f"(k <= q * {i + 1})" for i in range(60)), Type.BOOL))
    assert len(found.upper) == 60
    # With each pair of them compared at each step there are 36,000.
    assert len(asked) < 4000
