"""Adding up the gradients of learned inputs."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def accumulate(sums_ptr, at, value):
    """Add to elements of sums: float32 by atomics, or digits of int64, whose sum is the same in every order.

    A finite float32 is mantissa * 2**(place - 149); its digits have 24 bits, at places 0, 24, 48, ...
    """
    if sums_ptr.dtype.element_ty == tl.float32:
        tl.atomic_add(sums_ptr + at, value, mask=value != 0, sem="relaxed")
    else:
        bits = value.to(tl.int32, bitcast=True)
        exponent = (bits >> 23) & 255
        mantissa = (bits & 0x7FFFFF) | tl.where(exponent == 0, 0, 0x800000)
        place = tl.maximum(exponent - 1, 0)
        number = mantissa.to(tl.int64) << (place % 24).to(tl.int64)
        sign = tl.where(bits < 0, -1, 1).to(tl.int64)
        finite = exponent < 255
        digit = sums_ptr + tl.cast(at, tl.int64) * 13
        low = tl.where(finite, sign * (number & 0xFFFFFF), 1)
        tl.atomic_add(digit + tl.where(finite, place // 24, 12), low, mask=low != 0, sem="relaxed")
        high = sign * (number >> 24)
        tl.atomic_add(digit + place // 24 + 1, high, mask=finite & (high != 0), sem="relaxed")


@triton.jit
def shear(tile):
    """tile [BM, BN] with row i moved left by i, around the end: element [i, c] was [i, (c + i) % BN]."""
    BM: tl.constexpr = tile.shape[0]
    BN: tl.constexpr = tile.shape[1]
    return tl.gather(tile, (tl.arange(0, BN)[None, :] + tl.arange(0, BM)[:, None]) % BN, 1)


@triton.jit
def diagonal_sums(sheared, wrap):
    """Sums [1, BN] along the diagonals on which column - row is c - wrap * BN."""
    BM: tl.constexpr = sheared.shape[0]
    BN: tl.constexpr = sheared.shape[1]
    wraps = (tl.arange(0, BN)[None, :] + tl.arange(0, BM)[:, None]) // BN
    return tl.sum(tl.where(wraps == wrap, sheared, 0.0), 0)[None, :]
