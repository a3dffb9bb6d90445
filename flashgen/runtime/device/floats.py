"""Floats as the language has them where Triton's own operators, or GPUs' fast ones, differ."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def float_min(x, y):
    """The lesser of two floats; NaN where one is, as in PyTorch."""
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def float_max(x, y):
    """The greater of two floats; NaN where one is, as in PyTorch."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def float_floordiv(x, y):
    """x // y as in PyTorch: of 1.0 // 0.1 the floor is 9, though the quotient rounds to 10.

    float64 has the floor of quotients below 2**28.
    """
    a, b = tl.cast(x, tl.float64), tl.cast(y, tl.float64)
    floor = tl.floor(a / b)
    # Of signs that differ it is below 0, however small the quotient: of an infinite y the quotient is -0.
    floor = tl.where((floor == 0) & (a * b < 0), -1.0, floor)
    return tl.cast(tl.where((tl.abs(a) == float("inf")) & (b != 0), float("nan"), floor), tl.float32)


@triton.jit
def float_mod(x, y):
    """x % y as in PyTorch, with the sign of y: what float_floordiv leaves, which float64 has to the last bit."""
    a, b = tl.cast(x, tl.float64), tl.cast(y, tl.float64)
    of_infinite = tl.where(a * b < 0, b, a)
    is_infinite = (tl.abs(b) == float("inf")) & (tl.abs(a) < float("inf"))
    return tl.cast(tl.where(is_infinite, of_infinite, a - tl.floor(a / b) * b), tl.float32)


@triton.jit
def quotient(x, y):
    """x / y to the last bit: a GPU's own division of 41 by 41 is less than 1."""
    return tl.div_rn(x, y)
