"""Quotients and remainders of floats: the floor, and what it leaves, and so PyTorch's own where these are exact."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from flashgen.runtime.device.floats import float_floordiv, float_mod

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COUNT = 512
ODD = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 0.1, -0.1, 0.3, 7.0, 1e-30, -1e30, 3.4e38]
# Beyond the first quotient float64 does not have every floor; beyond the other PyTorch's, in float32, may be one off.
LARGEST_QUOTIENT, LARGEST_OF_TORCH = 2.0**28, 2.0**21


@triton.jit
def divide(x_ptr, y_ptr, quotient_ptr, remainder_ptr, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    tl.store(quotient_ptr + at, float_floordiv(x, y))
    tl.store(remainder_ptr + at, float_mod(x, y))


def computed(pairs: list[tuple[float, float]]) -> tuple[torch.Tensor, ...]:
    """x, y, and what a kernel has for x // y and x % y."""
    x, y = torch.tensor([*pairs, *[(1.0, 1.0)] * (COUNT - len(pairs))], device=DEVICE).T.contiguous()
    found = [torch.full_like(x, math.nan) for _ in range(2)]
    divide[1,](x, y, *found, COUNT)
    return x, y, *found


def assert_equal(found: torch.Tensor, expected: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
    wrong = ~((found == expected) | (found.isnan() & expected.isnan()))
    assert not wrong.any(), [*zip(x[wrong], y[wrong], found[wrong], expected[wrong], strict=True)][:5]


def exact(x: float, y: float) -> tuple[float, float]:
    """The floor of a quotient of finite numbers, and what it leaves."""
    floor = Fraction(x) // Fraction(y)
    return float(floor), float(Fraction(x) - floor * Fraction(y))


def assert_division(pairs: list[tuple[float, float]]) -> None:
    x, y, *found = computed(pairs)
    ratio = (x.double() / y.double()).abs()
    near = ~ratio.isfinite() | (ratio < LARGEST_OF_TORCH)
    for each, expected in zip(found, (x // y, x % y), strict=True):
        assert_equal(each[near], expected[near], x[near], y[near])
    finite = x.isfinite() & y.isfinite() & (y != 0) & (ratio < LARGEST_QUOTIENT)
    numbers = zip(x[finite].tolist(), y[finite].tolist(), strict=True)
    floors = torch.tensor([exact(*pair) for pair in numbers], device=DEVICE).reshape(-1, 2)
    for each, expected in zip(found, floors.T, strict=True):
        assert_equal(each[finite], expected, x[finite], y[finite])


def test_a_quotient_beyond_those_that_float32_tells_apart() -> None:
    assert_division([(3535779749953536.0, 231564512.0)])  # PyTorch has 15269090


def test_odd_floats() -> None:
    assert_division([*product(ODD, ODD)])


@pytest.mark.parametrize("step", [0.1, 0.3, 1 / 3, -0.7, 2.5])
def test_multiples_whose_quotient_rounds_to_the_next_integer(step: float) -> None:
    assert_division([(float(k), step) for k in range(COUNT)])
    assert_division([(k * step, step) for k in range(-COUNT // 2, COUNT // 2)])


@given(st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), min_size=1, max_size=COUNT))
def test_any_floats(pairs: list[tuple[float, float]]) -> None:
    assert_division(pairs)
