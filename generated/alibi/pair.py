"""alibi: what several kernels compute of a pair of query and key: _add, _announce, _announced, _score, _visible.

Generated from variants/alibi.yaml by

    flashgen build variants/alibi.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


@triton.jit
def _add(sums_ptr, at, value):
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


@gluon.jit
def _announce(index, turn, index_s, index_full, index_empty):
    """The producer's: tell the consumers which tile comes at this turn."""
    mbarrier.wait(index_empty.index(turn % 2), (turn // 2 & 1) ^ 1)
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    index_s.index(turn % 2).store(gl.full([1], 0, gl.int32, layout=layout) + index)
    mbarrier.arrive(index_full.index(turn % 2))


@gluon.jit
def _announced(turn, index_s, index_full, index_empty):
    """A consumer's: the tile of this turn."""
    mbarrier.wait(index_full.index(turn % 2), turn // 2 & 1)
    index = gl.sum(index_s.index(turn % 2).load(gl.BlockedLayout([1], [32], [4], [0])), 0)
    mbarrier.arrive(index_empty.index(turn % 2))
    return index


@triton.jit
def _score(qk, k, q_first, qk_scale, slopes_h_scaled):
    """score - slopes[h] * abs(q - k), in units of log2, less what is constant along a row."""
    return qk * qk_scale - (q_first - k).to(tl.float32) * slopes_h_scaled


@triton.jit
def _visible(q, k):
    """k <= q."""
    return k <= q
