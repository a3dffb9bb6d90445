"""Minima and maxima of floats as the language has them: NaN where an operand is, as in PyTorch."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def float_min(x, y):
    """The lesser of two floats."""
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def float_max(x, y):
    """The greater of two floats."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
