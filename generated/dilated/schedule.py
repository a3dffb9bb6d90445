"""dilated: which tiles of queries and keys the mask leaves out, mixes or leaves whole.

Generated from variants/dilated.yaml by

    flashgen build variants/dilated.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl

from flashgen.runtime.device.packed import sequence_range

from .pair import _visible


@triton.jit(do_not_specialize=["q_len", "kv_len", "num_k_tiles", "num_seqs", "total_q", "total_k"])
def _classify(
    states_ptr,
    q_len, kv_len, num_k_tiles,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k,
    BM: tl.constexpr, BN: tl.constexpr, CHUNK: tl.constexpr,
):
    # Grid: one program for each chunk of CHUNK tiles of keys, of each tile of queries, of each batch element and head
    # as far as the mask tells them apart, or of each packed sequence, where cu_seqlens are not None. Writes one state
    # for each tile: 0 no pair is visible, 1 some are, 2 all are.
    num_chunks = tl.cdiv(num_k_tiles, CHUNK)
    num_q_tiles = tl.cdiv(q_len, BM)
    chunk = tl.program_id(0) % num_chunks * CHUNK
    row = tl.program_id(0) // num_chunks
    b = row // num_q_tiles
    row0 = row % num_q_tiles * BM
    tiles = chunk + tl.arange(0, CHUNK)
    begin_q, q_len = sequence_range(cu_seqlens_q_ptr, b, num_seqs, total_q, q_len)
    begin_k, kv_len = sequence_range(cu_seqlens_k_ptr, b, num_seqs, total_k, kv_len)
    k_tiles = num_k_tiles if cu_seqlens_k_ptr is None else tl.cdiv(kv_len, BN)
    if cu_seqlens_q_ptr is not None and ((row0 >= q_len) | (chunk >= k_tiles)):
        # There are no such tiles.
        tl.store(
            states_ptr + row.to(tl.int64) * num_k_tiles + tiles, tl.zeros([CHUNK], tl.int8), mask=tiles < num_k_tiles
        )
        return
    rows = row0 + tl.arange(0, BM)
    # Rows and keys beyond the last are taken as the last: they read what exists and change no minimum or maximum.
    q = (tl.minimum(rows, q_len - 1) + (kv_len - q_len))[:, None]
    q_first = row0 + (kv_len - q_len)
    q_last = tl.minimum(row0 + BM, q_len) - 1 + (kv_len - q_len)

    # What the corners of each tile say of all its pairs, for the whole chunk at once.
    k_first = tl.minimum(tiles, k_tiles - 1) * BN
    k_last = tl.minimum(k_first + BN, kv_len) - 1
    t = q_last - k_first
    t_2 = q_first - k_last
    t_3 = t_2 >> 2 == t >> 2
    t_4 = tl.where(t_3, t_2 & 3, 0)
    t_5 = tl.where(t_3, t & 3, 3)
    some = (k_first <= q_last) & ((t_2 < 2048) & ((t_4 <= 0) & (0 <= t_5)))
    every = (k_last <= q_first) & ((t < 2048) & ((t_4 == 0) & (0 == t_5)))
    state = tl.zeros([CHUNK], tl.int32) + some.to(tl.int32) + every.to(tl.int32)

    # Pair by pair where that leaves doubt.
    for i in tl.range(0, tl.minimum(CHUNK, k_tiles - chunk)):
        if tl.sum(tl.where(tiles == chunk + i, state, 0)) == 1:
            keys = tl.minimum((chunk + i) * BN + tl.arange(0, BN), kv_len - 1)[None, :]
            shown = _visible(q, keys).to(tl.int32)
            state = tl.where(tiles == chunk + i, tl.max(shown) + tl.min(shown), state)

    # A ragged tile always needs the mask.
    state = tl.where((tiles + 1) * BN > kv_len, tl.minimum(state, 1), state)
    if cu_seqlens_q_ptr is not None:
        # So does one of queries here, whose end the host does not know.
        state = tl.where(tiles < k_tiles, tl.where(row0 + BM > q_len, tl.minimum(state, 1), state), 0)
    tl.store(states_ptr + row.to(tl.int64) * num_k_tiles + tiles, state.to(tl.int8), mask=tiles < num_k_tiles)
