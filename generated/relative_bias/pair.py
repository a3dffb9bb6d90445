"""relative_bias: what several kernels compute of a pair of query and key: _add, _score, _is_flat, _flat_score.

Generated from variants/relative_bias.yaml by

    flashgen build variants/relative_bias.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl


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


@triton.jit
def _score(qk, q, k, rel_base, scale):
    """score + rel[h, clamp(q - k, -64, 64) + 64]."""
    return qk * scale + tl.load(rel_base + tl.minimum(tl.maximum(q - k, -64), 64) + 64)


@triton.jit
def _is_flat(k_first, k_last, q_first, q_last):
    """Whether all pairs of a tile read at one place: rel[h, clamp(q - k, -64, 64) + 64]."""
    return tl.minimum(tl.maximum(q_first - k_last, -64), 64) == tl.minimum(tl.maximum(q_last - k_first, -64), 64)


@triton.jit
def _flat_score(qk, k_first, q_first, rel_base, scale):
    """The same as _score for such a tile."""
    return qk * scale + tl.load(rel_base + tl.minimum(tl.maximum(q_first - k_first, -64), 64) + 64)
