from __future__ import annotations

import math
from itertools import product

import pytest
from expression_strategies import expressions
from hypothesis import event, given
from hypothesis import strategies as st
from language_world import RUNTIME, SCOPE, SIZES, TENSORS, compile, pairs
from mask_strategies import drawn

from flashgen.lang.evaluate import evaluate
from flashgen.lang.intervals import MAX_LENGTH, Ranges
from flashgen.lang.nodes import Expr, Gather, Type, const, var
from flashgen.lang.traversal import indices, walk

DTYPES = {"doc": "int32", "off": "int64", "rel": "float32", "keep": "bool", "gain": "float32", "shift": "int16"}
DIMS = {
    "doc": (var("batch", Type.INT), var("kv_len", Type.INT)),
    "off": (var("docs", Type.INT),),
    "rel": (var("heads", Type.INT), const(3)),
    "keep": (var("batch", Type.INT), var("kv_len", Type.INT)),
    "gain": (),
    "shift": (),
}


def ranges(bottom_right: bool = True) -> Ranges:
    return Ranges(DTYPES, frozenset({"docs"}), bottom_right)


def holds(found: Ranges, expr: Expr, at: dict) -> bool:
    value = evaluate(expr, at, TENSORS)
    interval = found.of(expr)
    return interval.low <= value <= interval.high or math.isnan(value)


@given(kind=st.sampled_from(list(Type)), data=st.data(), at=st.lists(pairs(), min_size=1, max_size=5))
def test_every_value_lies_in_its_interval(kind: Type, data: st.DataObject, at: list[dict]) -> None:
    expr, found = compile(data.draw(expressions(kind, SCOPE, 4)), kind), ranges()
    assert all(holds(found, node, row) for row in at for node in walk(expr) if not indices(node))


@given(
    text=drawn("key"),
    q_len=st.integers(1, 40),
    kv_len=st.integers(1, 40),
    row=st.integers(0, 39),
    key=st.integers(0, 39),
    bottom_right=st.booleans(),
)
def test_every_position_lies_in_its_interval(
    text: str, q_len: int, kv_len: int, row: int, key: int, bottom_right: bool
) -> None:
    row, key = min(row, q_len - 1), min(key, kv_len - 1)
    at = {**SIZES, **RUNTIME, "b": 1, "h": 3, "kv_h": 1, "q_len": q_len, "kv_len": kv_len, "k": key}
    at["q"] = row + kv_len - q_len if bottom_right else row
    expr, found = compile(text, Type.INT), ranges(bottom_right)
    assert all(holds(found, node, at) for node in walk(expr) if not indices(node))


# Integers from 0 on, below 0, and of both signs.
LEFT, RIGHT = ("k % 4", "(k % 4 - 5)", "(k % 4 - 2)"), ("h % 3", "(h % 3 - 4)", "(h % 3 - 1)")


@pytest.mark.parametrize(
    "text",
    [
        *(f"({{a}}) {symbol} ({{b}})" for symbol in ("+", "-", "*", "//", "%", "&", "|", "^", "<<", ">>")),
        "({a}) % 3 - ({b}) % 3", "-({a})", "~({a})", "({a}) ** 2", "({a}) ** 3", "abs({a})", "min({a}, {b})",
        "max({a}, {b})", "{a} if {b} > 0 else {b}", "sum(i, n, {a})", "sum(i, n, i - {a})",
    ],
)  # fmt: skip
def test_every_value_of_an_operation_on_small_integers_lies_in_its_interval(text: str) -> None:
    """Each sign of both operands, and zero, whatever examples hypothesis draws."""
    for a, b in product(LEFT, RIGHT):
        expr, found = compile(text.format(a=a, b=b), Type.INT), ranges()
        for k, h in product(range(SIZES["kv_len"]), range(SIZES["heads"])):
            at = {**SIZES, **RUNTIME, "b": 0, "q": 4, "k": k, "h": h, "n": h}
            assert all(holds(found, node, at) for node in walk(expr) if not indices(node)), (a, b, at)


EXTREMES = [-(2**63), -(2**63) + 1, -(2**31), -1, 0, 1, 2**31 - 1, 2**62, 2**63 - 1]


@given(
    text=drawn("key"),
    off=st.lists(st.sampled_from(EXTREMES), min_size=3, max_size=3),
    n=st.sampled_from([-(2**31), 0, 2**31 - 1]),
    at=pairs(),
)
def test_integers_that_wrap_lie_in_their_interval_too(text: str, off: list[int], n: int, at: dict) -> None:
    expr, found, row = compile(f"off[n] * ({text}) - abs(off[h])", Type.INT), ranges(), {**at, "n": n}
    for node in walk(expr):
        if indices(node):
            # Inside a reduction it has a value for each term.
            continue
        interval = found.of(node)
        assert interval.low <= evaluate(node, row, {**TENSORS, "off": off}) <= interval.high


@given(
    rows=st.lists(
        st.sampled_from(["b", "h", "q", "k", "q - 1", "k + 1", "0", "2", "n", "k % 3", "doc[b, k]"]), min_size=2
    ),
    q_len=st.integers(1, 12),
    kv_len=st.integers(1, 12),
    docs=st.integers(1, 4),
    bottom_right=st.booleans(),
    data=st.data(),
)
def test_an_index_without_a_guard_never_leaves_its_tensor(
    rows: list[str], q_len: int, kv_len: int, docs: int, bottom_right: bool, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(DIMS)))
    text = f"{name}[{', '.join(rows[: len(DIMS[name])])}]" if DIMS[name] else name
    sizes = {**SIZES, "q_len": q_len, "kv_len": kv_len, "docs": docs}
    at = {**sizes, **RUNTIME, "n": data.draw(st.integers(-5, 5)), "kv_h": 0}
    at["b"], at["h"] = data.draw(st.integers(0, sizes["batch"] - 1)), data.draw(st.integers(0, sizes["heads"] - 1))
    at["k"] = data.draw(st.integers(0, kv_len - 1))
    at["q"] = data.draw(st.integers(0, q_len - 1)) + (kv_len - q_len if bottom_right else 0)
    found = ranges(bottom_right)
    for node in walk(compile(text)):
        if isinstance(node, Gather):
            for axis, size in enumerate(DIMS[node.input]):
                index, length = (evaluate(expr, at, TENSORS) for expr in (node.indices[axis], size))
                below, beyond = found.guard(node, axis, size)
                event(f"guarded {below} {beyond}")
                assert below or index >= 0
                assert beyond or index < length


@pytest.mark.parametrize(
    ("text", "axis", "expected"),
    [
        ("doc[b, k]", 0, (False, False)),
        ("doc[b, k]", 1, (False, False)),
        ("doc[b, q]", 1, (True, False)),
        ("doc[b, k + 1]", 1, (False, True)),
        ("rel[h, clamp(q - k, 0, 2)]", 1, (False, False)),
        ("off[doc[b, k]]", 0, (True, True)),
        ("off[0]", 0, (False, False)),
        ("off[1]", 0, (False, True)),
        ("keep[b, k // 64]", 1, (False, True)),
        ("rel[h, off[n] % 3]", 1, (False, False)),
        ("rel[h, abs(off[n]) * 3]", 1, (True, True)),
    ],
)
def test_guards(text: str, axis: int, expected: tuple[bool, bool]) -> None:
    node = compile(text)
    assert isinstance(node, Gather)
    assert ranges().guard(node, axis, DIMS[node.input][axis]) == expected


def test_counted_from_the_first_key_a_query_may_pass_the_last() -> None:
    node = compile("doc[b, q]")
    assert isinstance(node, Gather)
    assert ranges(bottom_right=False).guard(node, 1, DIMS["doc"][1]) == (True, True)


@pytest.mark.parametrize(
    ("text", "fits", "exact"),
    [
        ("q - k", True, False),
        ("k", True, True),
        ("h * kv_heads", False, False),
        ("q * k", False, False),
        ("off[n]", False, False),
        ("docs * docs", False, False),
        ("n", True, False),
        ("n + 1", False, False),
        ("doc[b, k]", True, False),
        ("clamp(off[n], -9, 9)", True, True),
        ("q % 64", True, True),
    ],
)
def test_what_the_machine_can_hold(text: str, fits: bool, exact: bool) -> None:
    found, expr = ranges(), compile(text)
    assert (found.fits_int32(expr), found.exact_in_float32(expr)) == (fits, exact)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("n % 7", 0, 6),
        ("n % (-7)", -6, 0),
        ("n % (h % 3)", 0, 1),
        ("k // 64", 0, MAX_LENGTH // 64),
        ("(n % 7) // (-2)", -3, 0),
        ("(n % 7) // (h % 3)", 0, 6),
        ("abs(n % 7 - 4)", 0, 4),
        ("(n % 7 - 3) ** 4", 0, 81),
        ("(n % 7 - 3) ** 3", -27, 27),
        ("(n % 7) << (h % 3)", 0, 24),
        ("(n % 7) ^ (h % 9)", 0, 15),
        ("q % n - k % n", 1 - 2**31, 2**31 - 1),
        ("q % h - k % h", -(2**20 - 2), 2**20 - 2),
        ("n % 7 - h % 7", -6, 6),
    ],
)
def test_intervals_are_tight(text: str, low: int, high: int) -> None:
    found = ranges().of(compile(text))
    assert (found.low, found.high) == (low, high)


def test_the_longest_sequence_is_exact_in_float32() -> None:
    assert ranges().of(var("q", Type.INT)).within(-MAX_LENGTH, MAX_LENGTH)
    assert MAX_LENGTH < 2**24
