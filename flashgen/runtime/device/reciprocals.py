"""Integer division by one number a program, whose reciprocal is worked out once."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def reciprocal_of(y):
    """What floor_div_by divides by an int32 y with: the sign of y, a bias, a magic number and a shift.

    The size of y is |y|, at least 1 and at most 2**29: size >= 2**shift > size / 2. The magic number is the largest
    whose product with the size is less than 2**(32 + shift); the bias is 1 more than 2**(29 - shift) times the size.
    """
    # Not the maximum of an absolute value, which NVIDIA's assembler gets wrong: see lang/extrema.py.
    size = tl.minimum(tl.abs(tl.cast(y, tl.int64)) | (y == 0), 1 << 29)
    # The exponent of a float64, which holds it exactly.
    shift = ((size.to(tl.float64).to(tl.int64, bitcast=True) >> 52) - 1023).to(tl.int32)
    magic = ((tl.cast(1, tl.uint64) << (32 + shift)) - 1) // size.to(tl.uint64)
    bias = size.to(tl.int32) * ((1 << 29) >> shift) + 1
    sign = tl.where(y < 0, -1, tl.where(y == 0, 0, 1))
    return sign, bias, magic.to(tl.uint32), shift


@triton.jit
def floor_div_by(x, reciprocal):
    """x // y rounded toward minus infinity, for integers |x| < 2**29 and reciprocal_of an int32 y; 0 where y is 0.

    After Robison, "N-bit unsigned division via N-bit multiply-add" (ARITH 2005). Let n = q size + r be a natural number
    less than 2**31 and magic * size = 2**p - e, so that p = 32 + shift and 1 <= e <= size. Then (n + 1) magic / 2**p is
    q + (r + 1) / size - (n + 1) e / (size 2**p). What is taken off is more than 0 and at most 1 / size, since e <= size
    < 2**(shift + 1) and n + 1 <= 2**31: rounded down, this is q. Here n is x or -x, by the sign of y, and
    2**(29 - shift) times the size, from 2**29 to below 2**30, which makes it natural; so many the quotient is too large.
    By a size of 2**29 all such x are divided as by a larger one. Where y is 0, x counts for nothing.
    """
    sign, bias, magic, shift = reciprocal
    quotient = tl.umulhi((x.to(tl.int32) * sign + bias).to(tl.uint32), magic) >> shift.to(tl.uint32)
    return quotient.to(tl.int32) - ((1 << 29) >> shift)


@triton.jit
def remainder_or_zero(x, quotient, y):
    """x % y, given x // y rounded toward minus infinity; 0 where y is 0."""
    return tl.where(y == 0, 0, x - quotient * y)
