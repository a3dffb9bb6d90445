"""Where the sequences of a packed batch begin and end, and which tile of which of them a program owns.

cu_seqlens int32 [batch + 1] are on the device, and nobody has looked at them: whatever stands there, what follows lies
within the packed tensor.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _begin(cu_seqlens_ptr, b, total):
    """Where sequence b begins; b up to batch, which is where the last one ends."""
    return tl.minimum(tl.maximum(tl.load(cu_seqlens_ptr + b), 0), total)


@triton.jit
def sequence_range(cu_seqlens_ptr, b, batch, total, longest):
    """Where sequence b begins, and its length, at most `longest`; from `batch` on there are no more, and 0 is theirs.

    The beginning is one of the `total` > 0 tokens, also of a sequence without any.
    """
    exists = b < batch
    begin = _begin(cu_seqlens_ptr, tl.minimum(b, batch), total)
    end = _begin(cu_seqlens_ptr, tl.minimum(b + 1, batch), total)
    length = tl.where(exists, tl.minimum(tl.maximum(end - begin, 0), longest), 0)
    return tl.minimum(begin, total - 1), length


@triton.jit
def owned_tile(cu_seqlens_ptr, slot, batch, total, longest, BLOCK: tl.constexpr):
    """The sequence and its tile that a slot stands for, where the sequence begins, and its length.

    There are total // BLOCK + batch + 1 slots, those of a sequence from begin // BLOCK + b on: enough for its tiles,
    so that a binary search finds it, and at most one without a tile. What lies behind the last sequence is one more.
    """
    b = 0
    last = batch
    while b < last:
        middle = (b + last + 1) // 2
        before = _begin(cu_seqlens_ptr, middle, total) // BLOCK + middle <= slot
        b = tl.where(before, middle, b)
        last = tl.where(before, last, middle - 1)
    begin = _begin(cu_seqlens_ptr, b, total)
    end = _begin(cu_seqlens_ptr, tl.minimum(b + 1, batch), total)
    length = tl.where(b < batch, tl.minimum(tl.maximum(end - begin, 0), longest), total - begin)
    return b, slot - begin // BLOCK - b, begin, length
