"""Powers at odd places, and positions that are kept within the longest sequence."""

from __future__ import annotations

from itertools import product

import torch
import triton
import triton.language as tl

from flashgen.runtime.device.arithmetic import clip, power

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BASES = [0.0, 1.0, -1.0, 2.0, -2.0, -0.25, 3.5, -7.0]
EXPONENTS = [0.0, 1.0, -1.0, 2.0, 3.0, -3.0, 0.5, -1.5]
LONGEST = 2**24


@triton.jit
def _powers(x_ptr, y_ptr, out_ptr, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    tl.store(out_ptr + at, power(tl.load(x_ptr + at), tl.load(y_ptr + at)))


@triton.jit
def _clipped(x_ptr, out_ptr, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    tl.store(out_ptr + at, clip(tl.load(x_ptr + at)))


def test_powers_are_those_of_pytorch() -> None:
    """No number where a base below zero has an exponent that is no integer."""
    x, y = torch.tensor([*product(BASES, EXPONENTS)], device=DEVICE).T.contiguous()
    found = torch.empty_like(x)
    _powers[1,](x, y, found, COUNT=len(x))
    torch.testing.assert_close(found, x**y, equal_nan=True)


def test_positions_of_the_longest_sequence_stay_and_others_end_there() -> None:
    ends = [LONGEST, LONGEST - 1, 2**23 + 1, 7, 0, -(2**23) - 1, -LONGEST, 5]
    far = [2**63 - 1, 2**31, 2**31 - 1, LONGEST + 1, -LONGEST - 1, -(2**31), -(2**31) - 1, -(2**63)]
    given = torch.tensor([*ends, *far], device=DEVICE)
    found = torch.empty(len(given), dtype=torch.int32, device=DEVICE)
    _clipped[1,](given, found, COUNT=len(given))
    assert found.tolist() == [*ends, *[LONGEST] * 4, *[-LONGEST] * 4]
