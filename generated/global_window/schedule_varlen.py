"""global_window: the tiles of packed sequences, as schedule.py has them.

Generated from variants/global_window.yaml by

    flashgen build variants/global_window.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl

from flashgen.runtime.device.packed import sequence_range

from .forward_varlen import _visible_packed


@triton.jit(do_not_specialize=["batch", "total_q", "total_k", "max_seqlen_q", "max_seqlen_k", "num_k_tiles"])
def _classify_varlen(
    states_ptr, cu_seqlens_q_ptr, cu_seqlens_k_ptr,
    is_global_ptr, batch, total_q, total_k, max_seqlen_q, max_seqlen_k, num_k_tiles,
    BM: tl.constexpr, BN: tl.constexpr, CHUNK: tl.constexpr,
):
    # Grid: one program for each chunk of CHUNK tiles of keys, of each tile of queries, of each batch element and head
    # as far as the mask tells them apart. Writes one state for each tile: 0 no pair is visible, 1 some are, 2 all are.
    num_chunks = tl.cdiv(num_k_tiles, CHUNK)
    num_q_tiles = tl.cdiv(max_seqlen_q, BM)
    chunk = tl.program_id(0) % num_chunks * CHUNK
    row = tl.program_id(0) // num_chunks
    b = row // num_q_tiles
    row0 = row % num_q_tiles * BM
    tiles = chunk + tl.arange(0, CHUNK)
    first_query, q_len = sequence_range(cu_seqlens_q_ptr, b, batch, total_q, max_seqlen_q)
    first_key, kv_len = sequence_range(cu_seqlens_k_ptr, b, batch, total_k, max_seqlen_k)
    k_tiles = tl.cdiv(kv_len, BN)
    if (row0 >= q_len) | (chunk >= k_tiles):
        tl.store(
            states_ptr + row.to(tl.int64) * num_k_tiles + tiles, tl.zeros([CHUNK], tl.int8), mask=tiles < num_k_tiles
        )
        return
    rows = row0 + tl.arange(0, BM)
    # Rows and keys beyond the last are taken as the last: they read what exists and change no minimum or maximum.
    q = (tl.minimum(rows, q_len - 1) + (kv_len - q_len))[:, None]
    q_first = row0 + (kv_len - q_len)
    q_last = tl.minimum(row0 + BM, q_len) - 1 + (kv_len - q_len)
    is_global_at = tl.load(is_global_ptr + first_key + tl.maximum(q, 0))
    is_global_at_min = tl.min(is_global_at.to(tl.int32)) != 0
    is_global_at_max = tl.max(is_global_at.to(tl.int32)) != 0

    # What the corners of each tile say of all its pairs, for the whole chunk at once.
    k_first = tl.minimum(tiles, k_tiles - 1) * BN
    k_last = tl.minimum(k_first + BN, kv_len) - 1
    k = tl.minimum(k_first[:, None] + tl.arange(0, BN)[None, :], kv_len - 1)
    t = q_first - k_last
    t_2 = q_last - k_first
    is_global_at_2 = tl.load(is_global_ptr + first_key + k)
    some = (t <= 256) & (t_2 >= -256) | (tl.max(is_global_at_2.to(tl.int32), 1) != 0) | is_global_at_max
    every = (t >= -256) & (t_2 <= 256) | (tl.min(is_global_at_2.to(tl.int32), 1) != 0) | is_global_at_min
    state = tl.zeros([CHUNK], tl.int32) + some.to(tl.int32) + every.to(tl.int32)

    # Pair by pair where that leaves doubt.
    for i in tl.range(0, tl.minimum(CHUNK, k_tiles - chunk)):
        if tl.sum(tl.where(tiles == chunk + i, state, 0)) == 1:
            keys = tl.minimum((chunk + i) * BN + tl.arange(0, BN), kv_len - 1)[None, :]
            shown = _visible_packed(q, keys, first_key, is_global_at, is_global_ptr).to(tl.int32)
            state = tl.where(tiles == chunk + i, tl.max(shown) + tl.min(shown), state)

    # A ragged tile always needs the mask.
    state = tl.where((tiles + 1) * BN > kv_len, tl.minimum(state, 1), state)
    state = tl.where(tiles < k_tiles, tl.where(row0 + BM > q_len, tl.minimum(state, 1), state), 0)
    tl.store(states_ptr + row.to(tl.int64) * num_k_tiles + tiles, state.to(tl.int8), mask=tiles < num_k_tiles)
