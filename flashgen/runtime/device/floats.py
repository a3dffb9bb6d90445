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
    """x // y."""
    return tl.floor(tl.div_rn(x, y))


@triton.jit
def float_mod(x, y):
    """x % y, with the sign of y."""
    return x - tl.floor(tl.div_rn(x, y)) * y


@triton.jit
def quotient(x, y):
    """x / y to the last bit: a GPU's own division of 41 by 41 is less than 1."""
    return tl.div_rn(x, y)
