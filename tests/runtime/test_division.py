"""Quotients and remainders by a reciprocal are Python's own, for every divisor of 32 bits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from flashgen.analysis.arithmetic import LARGEST
from flashgen.runtime.device.reciprocals import floor_div_by, reciprocal_of, remainder_or_zero

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COUNT = 256
LOWEST, HIGHEST = -(2**31), 2**31 - 1
POWERS = [2**n + by for n in range(32) for by in (-1, 0, 1)]
DIVISORS = sorted({d for n in (*POWERS, 6, 7, 10, 641, 1000003) for d in (n, -n) if LOWEST <= d <= HIGHEST})


@triton.jit
def divide(x_ptr, y_ptr, quotient_ptr, remainder_ptr, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr)
    quotient = floor_div_by(x, reciprocal_of(y))
    tl.store(quotient_ptr + at, quotient)
    tl.store(remainder_ptr + at, remainder_or_zero(x, quotient, y))


def divided(dividends: Sequence[int], y: int) -> list[tuple[int, int]]:
    """As kernels do it."""
    x = torch.tensor([*dividends, *[0] * (COUNT - len(dividends))], dtype=torch.int32, device=DEVICE)
    quotient, remainder = torch.empty_like(x), torch.empty_like(x)
    divide[1,](x, torch.tensor(y, dtype=torch.int32, device=DEVICE), quotient, remainder, COUNT)
    return [*zip(quotient.tolist(), remainder.tolist(), strict=True)][: len(dividends)]


def expected(dividends: Sequence[int], y: int) -> list[tuple[int, int]]:
    return [divmod(x, y) if y else (0, 0) for x in dividends]


def corners(y: int) -> list[int]:
    """The ends, and around multiples of y: those near 0, those near the ends, and some between."""
    most = LARGEST // max(abs(y), 1)
    multiples = {sign * n * y for n in (0, 1, 2, 3, most // 3, most // 2, most - 1, most) for sign in (1, -1)}
    found = {LARGEST, -LARGEST, *(multiple + by for multiple in multiples for by in (-1, 0, 1))}
    return sorted(x for x in found if abs(x) <= LARGEST)


@pytest.mark.parametrize("y", DIVISORS)
def test_corners(y: int) -> None:
    assert divided(corners(y), y) == expected(corners(y), y)


def test_every_small_dividend_by_every_small_divisor() -> None:
    dividends = range(-COUNT // 2, COUNT // 2)
    assert all(divided(dividends, y) == expected(dividends, y) for y in range(-COUNT, COUNT + 1))


@given(
    y=st.integers(LOWEST, HIGHEST) | st.integers(-(2**16), 2**16),
    dividends=st.lists(st.integers(-LARGEST, LARGEST), max_size=100),
)
def test_any(y: int, dividends: list[int]) -> None:
    around = corners(y)
    assert divided(dividends, y) == expected(dividends, y)
    assert divided(around, y) == expected(around, y)
