"""block_sparse: out and lse of few queries over many keys.

Generated from variants/block_sparse.yaml by

    flashgen build variants/block_sparse.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl

from flashgen.runtime.device.rows import finished, largest_logit
from flashgen.runtime.device.softmax import online_softmax_scaled

from .pair import _visible_of_rows


@triton.jit(do_not_specialize=["heads", "kv_heads", "q_len", "kv_len", "num_splits"])
def _decode(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, max_ptr, acc_ptr, m_ptr, l_ptr,
    block_mask_ptr, stride_block_mask_0, stride_block_mask_1, stride_block_mask_2,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    scale, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim, num_splits,
    BM: tl.constexpr, BN: tl.constexpr, HEAD_DIM: tl.constexpr, V_HEAD_DIM: tl.constexpr,
    CHUNK: tl.constexpr,
):
    # Grid: one program for each split of the keys of each tile of rows of each KV head of each batch element.
    # A tile has BM rows, each a query and a head of those that share the KV head.
    # h and q [BM, 1]: those of the rows; k [1, BN]: positions of a tile's keys. m, l, acc: see online_softmax_scaled.
    # HEAD_DIM and V_HEAD_DIM are head_dim and v_head_dim rounded up to powers of two; what lies beyond reads as zero.
    kv_h = tl.program_id(0) % kv_heads
    item = tl.program_id(0) // kv_heads
    group = heads // kv_heads
    num_tiles = tl.cdiv(q_len * group, BM)
    split = item % num_splits
    tile = item // num_splits % num_tiles
    b = item // num_splits // num_tiles

    # Rows beyond the last are taken as the last: they read what exists and change no minimum or maximum.
    rows = tile * BM + tl.arange(0, BM)
    in_range = rows < q_len * group
    rows = tl.minimum(rows, q_len * group - 1)
    query = rows // group
    head = kv_h * group + rows % group
    h = head[:, None]
    q = (query + (kv_len - q_len))[:, None]
    q_rows = q_ptr + b.to(tl.int64) * stride_qb + head.to(tl.int64) * stride_qh + query.to(tl.int64) * stride_qm
    k_base = k_ptr + b.to(tl.int64) * stride_kb + kv_h.to(tl.int64) * stride_kh
    v_base = v_ptr + b.to(tl.int64) * stride_vb + kv_h.to(tl.int64) * stride_vh
    dims = tl.arange(0, HEAD_DIM)
    v_dims = tl.arange(0, V_HEAD_DIM)
    qk_scale = scale * 1.4426950408889634
    block_mask_row = h.to(tl.int64) * stride_block_mask_1
    block_mask_row_2 = (
        tl.maximum(tl.minimum(q - (kv_len - q_len) >> 7, (q_len + 127) // 128 - 1), 0).to(tl.int64)
        * stride_block_mask_2
    )
    c = (kv_len + 127) // 128 - 1
    block_mask_base = block_mask_ptr + b.to(tl.int64) * stride_block_mask_0

    # This program's split of these keys, whole tiles.
    per_split = tl.cdiv(tl.cdiv(kv_len, BN), num_splits) * BN
    split_start = split * per_split
    split_end = tl.minimum(split_start + per_split, kv_len)

    q_tile = tl.load(q_rows[:, None] + dims[None, :], mask=(dims < head_dim)[None, :], other=0.0)
    # A finite floor for the maximum: -inf - floor is -inf, so that a row that sees no key stays at l = 0, without NaN.
    m = tl.full([BM], -3.0e38, tl.float32)
    l = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, V_HEAD_DIM], tl.float32)

    # CHUNK tiles of keys at a time: first the mask alone, then the keys and values of the tiles that some row sees.
    for chunk in tl.range(split_start, split_end, CHUNK * BN):
        tiles = tl.arange(0, CHUNK)
        seen = tl.zeros([CHUNK], tl.int32)
        for i in tl.range(0, tl.minimum(tl.cdiv(split_end - chunk, BN), CHUNK)):
            col = chunk + i * BN + tl.arange(0, BN)[None, :]
            k = tl.minimum(col, kv_len - 1)
            shown = (_visible_of_rows(k, block_mask_base, block_mask_row, block_mask_row_2, c) & (col < kv_len)).to(
                tl.int32
            )
            seen = tl.where(tiles == i, tl.max(tl.max(shown, 1), 0), seen)
        order = tl.cumsum(seen, 0)
        for i in tl.range(0, tl.sum(seen, 0)):
            # The tile of which i others that are seen come first.
            start = chunk + tl.sum(tl.where((seen == 1) & (order == i + 1), tiles, 0), 0) * BN
            at = tl.minimum(start + tl.arange(0, BN), kv_len - 1)
            k_rows = k_base + at.to(tl.int64) * stride_kn
            v_rows = v_base + at.to(tl.int64) * stride_vn
            k_tile = tl.load(k_rows[:, None] + dims[None, :], mask=(dims < head_dim)[None, :], other=0.0)
            qk = tl.dot(q_tile, k_tile.T, input_precision="ieee")
            col = start + tl.arange(0, BN)[None, :]
            k = tl.minimum(col, kv_len - 1)
            qk = tl.where(
                _visible_of_rows(k, block_mask_base, block_mask_row, block_mask_row_2, c) & (col < kv_len),
                qk,
                -float("inf"),
            )
            v_tile = tl.load(v_rows[:, None] + v_dims[None, :], mask=(v_dims < v_head_dim)[None, :], other=0.0)
            acc, m, l = online_softmax_scaled(qk, qk_scale, v_tile, acc, m, l)

    # Epilogue: the rows themselves, or where their keys are split this program's part of them.
    if num_splits == 1:
        factor, lse, _ = finished(m, l, 0.0, None, NATURAL=False)
        lse_rows = (b * heads + head).to(tl.int64) * q_len + query
        out_rows = out_ptr + lse_rows * v_head_dim
        tl.store(lse_ptr + lse_rows, lse, mask=in_range)
        if max_ptr is not None:
            tl.store(max_ptr + lse_rows, largest_logit(m, l, 0.0, NATURAL=False), mask=in_range)
        tl.store(
            out_rows[:, None] + v_dims[None, :],
            (acc * factor[:, None]).to(out_ptr.dtype.element_ty),
            mask=in_range[:, None] & (v_dims < v_head_dim)[None, :],
        )
    else:
        part = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
        tl.store(m_ptr + part, m)
        tl.store(l_ptr + part, l)
        tl.store(acc_ptr + part[:, None] * V_HEAD_DIM + v_dims[None, :], acc)
