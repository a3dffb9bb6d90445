"""Intervals of floats: what float32 makes of an expression lies in them, and what may be no number has none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from language_world import compile

from flashgen.lang.intervals import Ranges
from flashgen.lang.nodes import Const, Expr, Op, Type, const, op, var
from flashgen.lang.traversal import walk

RANGES = Ranges({"doc": "int32", "off": "int64", "rel": "float32", "keep": "bool", "gain": "float32", "shift": "int16"})
NAMES = ("k", "h", "kv_len")
INTEGERS = st.recursive(
    st.sampled_from([var(name, Type.INT) for name in NAMES]) | st.integers(-40, 40).map(const),
    lambda inner: st.builds(op, st.sampled_from(["add", "sub", "min", "max"]), inner, inner),
    max_leaves=4,
)
FLOATS = st.recursive(
    INTEGERS.map(lambda x: op("to_float", x)) | st.floats(-100, 100, width=64).map(const),
    lambda inner: (
        st.builds(op, st.sampled_from(["add", "sub", "mul", "truediv", "min", "max"]), inner, inner)
        | st.builds(op, st.sampled_from(["neg", "abs", "exp", "exp2", "log", "log2", "sqrt", "sigmoid", "tanh"]), inner)
    ),
    max_leaves=8,
)


def nearest_of_64_bits(x: np.floating) -> int:
    return min(max(int(x), -(2**63)), 2**63 - 1) if np.isfinite(x) else 0


_OF_FLOATS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide, "min": np.minimum, "max": np.maximum,
    "neg": np.negative, "abs": np.abs, "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "sqrt": np.sqrt,
    "tanh": np.tanh, "sigmoid": lambda x: np.float32(1) / (np.float32(1) + np.exp(-x)),
    "floor": lambda x: nearest_of_64_bits(np.floor(x)),
    "trunc": lambda x: nearest_of_64_bits(np.trunc(x)),
}  # fmt: skip
_OF_INTEGERS = {"add": int.__add__, "sub": int.__sub__, "min": min, "max": max}


def in_float32(root: Expr, at: dict[str, int]) -> dict[Expr, float]:
    """What each part of an expression is where floats have 32 bits."""
    found: dict[Expr, float] = {}
    for node in walk(root):
        operands = [found[child] for child in node.children]
        if isinstance(node, Const):
            found[node] = np.float32(node.value) if node.type is Type.FLOAT else node.value
        elif not isinstance(node, Op):
            found[node] = at[node.name]
        elif node.name == "to_float":
            found[node] = np.float32(operands[0])
        else:
            rules = _OF_FLOATS if node.args[0].type is Type.FLOAT else _OF_INTEGERS
            found[node] = rules[node.name](*operands)
    return found


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@given(expr=FLOATS, k=st.integers(0, 2**24 - 2), h=st.integers(0, 63), kv_len=st.integers(1, 2**24 - 1))
def test_what_float32_makes_of_it_lies_in_the_interval(expr: Expr, k: int, h: int, kv_len: int) -> None:
    at = {"k": min(k, kv_len - 1), "h": h, "kv_len": kv_len}
    values = in_float32(op("floor", expr), at) | in_float32(op("trunc", expr), at)
    for node, value in values.items():
        interval = RANGES.of(node)
        if interval.has_ends:
            assert interval.low <= value <= interval.high, f"{value} is not in {interval}"


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("floor(k / 41)", 0, 409204),
        ("floor(8 * tanh(k - 7.5))", -9, 8),
        ("floor(log(max(abs(q - k), 1) / 8) / 2.77 * 8)", -7, 48),
        ("floor(sqrt(k + 1.0))", 0, 4097),
        ("floor(exp(-1.0 * h / heads))", -1, 1),
    ],
)
def test_a_floor_of_what_is_bounded_is_bounded(text: str, low: int, high: int) -> None:
    found = RANGES.of(compile(text, Type.INT))
    assert found.within(low, high) and found.has_ends


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # Functions are wrong by a little next to zero too.
        ("floor(log2(max(k, 1.0)))", -1),
        # What is below the normal numbers may be zero on a GPU.
        ("floor(-1e-30 * max(k, 1) * 1e-15)", 0),
        ("floor(1e-30 * max(k, 1) * 1e-15 * 1e38 * 1e10)", 0),
        ("floor(2.0 if k < 3 else -5.5)", -6),
        ("floor(-5.5 if k < 3 else 2.0)", 2),
    ],
)
def test_what_a_gpu_may_make_of_it_lies_in_the_interval(text: str, value: int) -> None:
    found = RANGES.of(compile(text, Type.INT))
    assert found.has_ends and found.low <= value <= found.high


@pytest.mark.parametrize(
    "text",
    [
        "floor(gain)",
        "floor(rel[h, 0] * 0.0)",
        # Of NaN a clamp is NaN, which is no number below 8.
        "floor(clamp(gain, 0.0, 8.0))",
        "floor(log(k))",
        "floor(1.0 / k)",
        "floor(1.0 / (q - k))",
        "floor(sqrt(k - 1.0))",
        "floor(exp(k))",
        "floor((k * 1e38) * 10.0)",
        "floor(k * inf)",
        # Infinity less infinity, which no clamp makes a number.
        "floor(clamp(k * 1e33 - h * 1e36, 0.0, 8.0))",
        # The largest integer of 32 bits is one more as a float.
        "floor(max(doc[b, k], 0.0))",
        # Zero on a GPU.
        "floor(log(max(k, 1e-40)))",
        # Zero in float32.
        "floor(log(1e-30 * exp2(-60.0 - h / 1e6) * 1e30))",
        "floor(score)",
    ],
)
def test_of_what_may_be_infinite_or_no_number_nothing_is_said(text: str) -> None:
    found = RANGES.of(compile(text, Type.INT))
    assert not RANGES.fits_int32(compile(text, Type.INT)) and math.isfinite(found.low)


def test_a_constant_may_be_rounded_to_the_next_integer() -> None:
    found = RANGES.of(op("floor", op("max", op("to_float", var("h", Type.INT)), const(1 - 2.0**-30))))
    assert found.low == 0 and found.high >= 1
