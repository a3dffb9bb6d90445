"""The kernel that puts packed sequences into the order in which others take their tiles: the longest first.

What begins last decides when all is done: it should be short (Graham, Bounds on multiprocessing timing anomalies, 1969).
"""

from __future__ import annotations

import triton
import triton.language as tl

from flashgen.runtime.device.packed import sequence_or_rest


@triton.jit(do_not_specialize=["num_seqs", "total_k", "kv_len"])
def order_sequences(
    cu_seqlens_k_ptr, order_ptr, num_seqs, total_k, kv_len, BN: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Write the order of sequences by their number of tiles of BN keys, of equal ones the first first.

    What lies behind the last sequence is one more. `order` int32 [2 count + 1], count = num_seqs + 1: the sequences;
    then the number of the first tile of each, and of all tiles. Grid: a program for each BLOCK of them.
    """
    count = num_seqs + 1
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tiles = tl.cdiv(sequence_or_rest(cu_seqlens_k_ptr, b, num_seqs, total_k, kv_len)[1], BN)
    rank = tl.zeros([BLOCK], tl.int32)
    first_tile = tl.zeros([BLOCK], tl.int64)
    num_tiles = tl.full([], 0, tl.int64)
    for start in range(0, count, BLOCK):
        other = start + tl.arange(0, BLOCK)
        others = tl.cdiv(sequence_or_rest(cu_seqlens_k_ptr, other, num_seqs, total_k, kv_len)[1], BN)
        more = others[None, :] > tiles[:, None]
        before = more | (others[None, :] == tiles[:, None]) & (other[None, :] < b[:, None])
        rank += tl.sum((before & (other < count)[None, :]).to(tl.int32), 1)
        first_tile += tl.sum(tl.where(before, others[None, :], 0).to(tl.int64), 1)
        num_tiles += tl.sum(others.to(tl.int64), 0)
    # Nobody has looked at cu_seqlens: sequences that lie over each other may have more tiles than there is room for.
    most = total_k // BN + count
    tl.store(order_ptr + rank, b, mask=b < count)
    tl.store(order_ptr + count + rank, tl.minimum(first_tile, most).to(tl.int32), mask=b < count)
    tl.store(order_ptr + 2 * count, tl.minimum(num_tiles, most).to(tl.int32))
