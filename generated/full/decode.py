"""full: out and lse of few queries over many keys.

Generated from variants/full.yaml by

    flashgen build variants/full.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl

from flashgen.runtime.device.rows import finished, largest_logit
from flashgen.runtime.device.softmax import online_softmax_scaled


@triton.jit(do_not_specialize=["heads", "kv_heads", "q_len", "kv_len", "num_splits"])
def _decode(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, max_ptr, acc_ptr, m_ptr, l_ptr,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    scale, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim, num_splits,
    BM: tl.constexpr, BN: tl.constexpr, HEAD_DIM: tl.constexpr, V_HEAD_DIM: tl.constexpr,
):
    # Grid: one program for each split of the keys of each tile of rows of each KV head of each batch element.
    # A tile has BM rows, each a query and a head of those that share the KV head.
    # k [1, BN]: positions of a tile's keys. m, l, acc: see online_softmax_scaled.
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
    q_rows = q_ptr + b.to(tl.int64) * stride_qb + head.to(tl.int64) * stride_qh + query.to(tl.int64) * stride_qm
    k_base = k_ptr + b.to(tl.int64) * stride_kb + kv_h.to(tl.int64) * stride_kh
    v_base = v_ptr + b.to(tl.int64) * stride_vb + kv_h.to(tl.int64) * stride_vh
    dims = tl.arange(0, HEAD_DIM)
    v_dims = tl.arange(0, V_HEAD_DIM)
    qk_scale = scale * 1.4426950408889634

    # This program's split of these keys, whole tiles.
    per_split = tl.cdiv(tl.cdiv(kv_len, BN), num_splits) * BN
    split_start = split * per_split
    split_end = tl.minimum(split_start + per_split, kv_len)

    q_tile = tl.load(q_rows[:, None] + dims[None, :], mask=(dims < head_dim)[None, :], other=0.0)
    # A finite floor for the maximum: -inf - floor is -inf, so that a row that sees no key stays at l = 0, without NaN.
    m = tl.full([BM], -3.0e38, tl.float32)
    l = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, V_HEAD_DIM], tl.float32)

    # Full tiles run without the mask.
    for start in tl.range(split_start, split_end, BN):
        at = tl.minimum(start + tl.arange(0, BN), kv_len - 1)
        k_rows = k_base + at.to(tl.int64) * stride_kn
        v_rows = v_base + at.to(tl.int64) * stride_vn
        k_tile = tl.load(k_rows[:, None] + dims[None, :], mask=(dims < head_dim)[None, :], other=0.0)
        qk = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        k = start + tl.arange(0, BN)[None, :]
        if start + BN > kv_len:
            qk = tl.where(k < kv_len, qk, -float("inf"))
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
