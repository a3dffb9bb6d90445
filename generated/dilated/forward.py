"""dilated: out and lse.

Generated from variants/dilated.yaml by

    flashgen build variants/dilated.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl

from flashgen.runtime.device.packed import first_row, output_rows, owned_tile, sequence_range, store_nothing_seen
from flashgen.runtime.device.softmax import online_softmax_scaled

from .pair import _visible


@triton.jit(do_not_specialize=[
    "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "num_k_tiles", "num_seqs", "total_q", "total_k",
])
def _forward(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, max_ptr, counts_ptr, tiles_ptr, num_k_tiles,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    scale, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k,
    BM: tl.constexpr, BN: tl.constexpr, HEAD_DIM: tl.constexpr, V_HEAD_DIM: tl.constexpr,
    STAGES: tl.constexpr,
):
    # Grid: one program for each tile of BM query rows of each head of each batch element.
    # Packed sequences are where cu_seqlens are not None; see owned_tile for both.
    # q [BM, 1]: positions of the tile's rows; k [1, BN]: positions of a tile's keys. m, l, acc: see
    # online_softmax_scaled.
    # HEAD_DIM and V_HEAD_DIM are head_dim and v_head_dim rounded up to powers of two; what lies beyond reads as zero.
    # Each sequence has as many rows in the schedule.
    num_tiles = tl.cdiv(q_len, BM)
    head, b, h, tile, begin_q, q_len = owned_tile(cu_seqlens_q_ptr, num_seqs, total_q, q_len, heads, BM)
    begin_k, kv_len = sequence_range(cu_seqlens_k_ptr, b, num_seqs, total_k, kv_len)
    kv_h = h // (heads // kv_heads)
    row0 = tile * BM
    if cu_seqlens_q_ptr is not None and ((row0 >= q_len) | (kv_len == 0)):
        # There is no such tile, or nothing to see.
        store_nothing_seen(
            out_ptr, lse_ptr, max_ptr, None, row0, head, begin_q, q_len, total_q, heads, v_head_dim, BM, V_HEAD_DIM
        )
        return

    q_base = q_ptr + begin_q.to(tl.int64) * stride_qb + h.to(tl.int64) * stride_qh
    k_base = k_ptr + begin_k.to(tl.int64) * stride_kb + kv_h.to(tl.int64) * stride_kh
    v_base = v_ptr + begin_k.to(tl.int64) * stride_vb + kv_h.to(tl.int64) * stride_vh
    q_desc = tl.make_tensor_descriptor(q_base, [q_len, head_dim], [stride_qm, 1], [BM, HEAD_DIM])
    k_desc = tl.make_tensor_descriptor(k_base, [kv_len, head_dim], [stride_kn, 1], [BN, HEAD_DIM])
    v_desc = tl.make_tensor_descriptor(v_base, [kv_len, v_head_dim], [stride_vn, 1], [BN, V_HEAD_DIM])

    rows = row0 + tl.arange(0, BM)
    # Rows beyond the last are taken as the last: they read what exists and change no minimum or maximum.
    q = (tl.minimum(rows, q_len - 1) + (kv_len - q_len))[:, None]
    qk_scale = scale * 1.4426950408889634

    # What the schedule says of this tile of queries: which tiles of keys are mixed and which are full.
    row = tile.to(tl.int64)
    if cu_seqlens_q_ptr is not None:
        row += b.to(tl.int64) * num_tiles
    num_mixed = tl.load(counts_ptr + 3 * row)
    num_full = tl.load(counts_ptr + 3 * row + 1)
    tiles_ptr += row * num_k_tiles

    q_tile = q_desc.load([row0, 0])
    # A finite floor for the maximum: -inf - floor is -inf, so that a row that sees no key stays at l = 0, without NaN.
    m = tl.full([BM], -3.0e38, tl.float32)
    l = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, V_HEAD_DIM], tl.float32)

    # Full tiles: each row sees each key, no mask. The index of a tile is loaded ahead of the tile, which takes every
    # other stage of the pipeline.
    for i in tl.range(0, num_full, num_stages=2 * STAGES - 1):
        start = tl.load(tiles_ptr + num_k_tiles - 1 - i) * BN
        k_tile = k_desc.load([start, 0])
        qk = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        v_tile = v_desc.load([start, 0])
        acc, m, l = online_softmax_scaled(qk, qk_scale, v_tile, acc, m, l)

    # Mixed tiles, few: a shorter pipeline leaves shared memory for the mask.
    for i in tl.range(0, num_mixed, num_stages=STAGES - 1 if STAGES > 1 else 1):
        start = tl.load(tiles_ptr + i) * BN
        k_tile = k_desc.load([start, 0])
        qk = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        k = start + tl.arange(0, BN)[None, :]
        qk = tl.where(_visible(q, k), qk, -float("inf"))
        v_tile = v_desc.load([start, 0])
        acc, m, l = online_softmax_scaled(qk, qk_scale, v_tile, acc, m, l)

    # Epilogue.
    empty = l == 0
    acc = acc / tl.where(empty, 1.0, l)[:, None]
    lse = (m + tl.log2(l)) * 0.6931471805599453
    lse_rows = first_row(cu_seqlens_q_ptr, head, begin_q, q_len, total_q) + rows
    out_rows = output_rows(cu_seqlens_q_ptr, rows, head, begin_q, q_len, heads)
    out_cols = tl.arange(0, V_HEAD_DIM)
    in_range = rows < q_len
    tl.store(lse_ptr + lse_rows, tl.where(empty, -float("inf"), lse), mask=in_range)
    if max_ptr is not None:  # NaN where a logit is
        largest = tl.where((l == l) | (m == float("inf")), m * 0.6931471805599453, l)
        tl.store(max_ptr + lse_rows, tl.where(empty, -float("inf"), largest), mask=in_range)
    tl.store(
        out_ptr + out_rows[:, None] * v_head_dim + out_cols[None, :],
        acc.to(out_ptr.dtype.element_ty),
        mask=in_range[:, None] & (out_cols < v_head_dim)[None, :],
    )
