"""global_window: out and lse of new queries over keys in a paged cache.

Generated from variants/global_window.yaml by

    flashgen build variants/global_window.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl

from flashgen.runtime.device.pages import as_factor, beside_cache, converted, page_of
from flashgen.runtime.device.plan import query_range
from flashgen.runtime.device.rows import finished
from flashgen.runtime.device.softmax import online_softmax_scaled

from .pair import _visible


@triton.jit(do_not_specialize=["heads", "kv_heads", "total_q", "max_q", "num_blocks", "max_keys", "batch"])
def _decode_paged(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, acc_ptr, m_ptr, l_ptr,
    items_ptr, count_ptr, block_table_ptr, seq_lens_ptr, cu_seqlens_q_ptr, k_scale_ptr, v_scale_ptr,
    is_global_ptr, stride_is_global_0,
    stride_qm, stride_qh, stride_kp, stride_kn, stride_kh, stride_vp, stride_vn, stride_vh,
    stride_ksp, stride_ksn, stride_ksh, stride_vsp, stride_vsn, stride_vsh, stride_table, stride_om, stride_oh,
    scale, batch, total_q, max_q, heads, kv_heads, head_dim, v_head_dim, num_blocks, max_keys,
    BM: tl.constexpr, BN: tl.constexpr, HEAD_DIM: tl.constexpr, V_HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TOKEN_SCALES: tl.constexpr, CONVERTED: tl.constexpr,
    CHUNK: tl.constexpr, STAGES: tl.constexpr,
):
    # Grid: one program for each item of the plan and each KV head: one split of the keys of one tile of rows.
    # A tile has BM rows, each a query and a head of those that share the KV head.
    # q [BM, 1]: those of the rows; k [1, BN]: positions of a tile's keys. m, l, acc: see online_softmax_scaled.
    # HEAD_DIM and V_HEAD_DIM are head_dim and v_head_dim rounded up to powers of two; what lies beyond reads as zero.
    kv_h = tl.program_id(0) % kv_heads
    item = tl.program_id(0) // kv_heads
    group = heads // kv_heads
    # A cache of 8 bits has scales, which its dot products are multiplied by.
    QUANTIZED: tl.constexpr = k_ptr.dtype.element_ty != q_ptr.dtype.element_ty
    if item >= tl.load(count_ptr):
        return
    b = tl.load(items_ptr + 4 * item)
    tile = tl.load(items_ptr + 4 * item + 1)
    split = tl.load(items_ptr + 4 * item + 2)
    num_splits = tl.load(items_ptr + 4 * item + 3)
    if num_splits == 0:  # no keys: the merge writes these rows
        return
    begin_q, q_len = query_range(cu_seqlens_q_ptr, b, batch, total_q, max_q)
    kv_len = tl.minimum(tl.maximum(tl.load(seq_lens_ptr + b), 0), max_keys)
    if (tile * BM >= q_len * group) | (kv_len == 0):  # the plan is for other lengths
        return

    # Rows beyond the last are taken as the last: they read what exists and change no minimum or maximum.
    rows = tile * BM + tl.arange(0, BM)
    in_range = rows < q_len * group
    rows = tl.minimum(rows, q_len * group - 1)
    query = rows // group
    head = kv_h * group + rows % group
    q = (query + (kv_len - q_len))[:, None]
    pages_ptr = block_table_ptr + b.to(tl.int64) * stride_table
    q_rows = q_ptr + (begin_q + query).to(tl.int64) * stride_qm + head.to(tl.int64) * stride_qh
    k_base = k_ptr + kv_h.to(tl.int64) * stride_kh
    v_base = v_ptr + kv_h.to(tl.int64) * stride_vh
    dims = tl.arange(0, HEAD_DIM)
    v_dims = tl.arange(0, V_HEAD_DIM)
    qk_scale = scale * 1.4426950408889634
    is_global_base = is_global_ptr + b.to(tl.int64) * stride_is_global_0
    is_global_b_q = tl.load(is_global_base + tl.maximum(q, 0))

    # This program's split of these keys, whole tiles.
    per_split = tl.cdiv(tl.cdiv(kv_len, BN), num_splits) * BN
    split_start = split * per_split
    split_end = tl.minimum(split_start + per_split, kv_len)

    q_tile = tl.load(q_rows[:, None] + dims[None, :], mask=(dims < head_dim)[None, :], other=0.0)
    q_tile, k_factor = beside_cache(q_tile, k_ptr)
    if k_scale_ptr is not None and not TOKEN_SCALES:
        k_factor *= tl.load(k_scale_ptr + kv_h * stride_ksh)
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
            shown = (_visible(q, k, is_global_b_q, is_global_base) & (col < kv_len)).to(tl.int32)
            seen = tl.where(tiles == i, tl.max(tl.max(shown, 1), 0), seen)
        order = tl.cumsum(seen, 0)
        # A page's number is loaded ahead of the page: a tile takes every other stage of the pipeline.
        for i in tl.range(0, tl.sum(seen, 0), num_stages=2 * STAGES - 1):
            # The tile of which i others that are seen come first.
            start = chunk + tl.sum(tl.where((seen == 1) & (order == i + 1), tiles, 0), 0) * BN
            page, place = page_of(pages_ptr, tl.minimum(start + tl.arange(0, BN), kv_len - 1), num_blocks, BLOCK_SIZE)
            k_rows = k_base + page * stride_kp + place * stride_kn
            v_rows = v_base + page * stride_vp + place * stride_vn
            k_tile = tl.load(k_rows[:, None] + dims[None, :], mask=(dims < head_dim)[None, :], other=0.0)
            qk = tl.dot(q_tile, as_factor(k_tile, q_tile).T, input_precision="ieee")
            if QUANTIZED:
                qk *= k_factor[:, None]
                if TOKEN_SCALES:
                    qk *= tl.load(k_scale_ptr + page * stride_ksp + place * stride_ksn + kv_h * stride_ksh)[None, :]
            col = start + tl.arange(0, BN)[None, :]
            k = tl.minimum(col, kv_len - 1)
            qk = tl.where(_visible(q, k, is_global_b_q, is_global_base) & (col < kv_len), qk, -float("inf"))
            v_tile = tl.load(v_rows[:, None] + v_dims[None, :], mask=(v_dims < v_head_dim)[None, :], other=0.0)
            v_tile = as_factor(v_tile, q_tile)
            if TOKEN_SCALES:
                v_scale = tl.load(v_scale_ptr + page * stride_vsp + place * stride_vsn + kv_h * stride_vsh)
                v_tile = (v_tile.to(tl.float32) * v_scale[:, None]).to(q_ptr.dtype.element_ty)
            if CONVERTED:
                v_tile = converted(v_tile)
            acc, m, l = online_softmax_scaled(qk, qk_scale, v_tile, acc, m, l)

    if v_scale_ptr is not None and not TOKEN_SCALES:
        acc *= tl.load(v_scale_ptr + kv_h * stride_vsh)

    # Epilogue: the rows themselves, or where their keys are split this program's part of them.
    if num_splits == 1:
        factor, lse, _ = finished(m, l, 0.0, None, NATURAL=False)
        out_rows = out_ptr + (begin_q + query).to(tl.int64) * stride_om + head.to(tl.int64) * stride_oh
        lse_rows = head.to(tl.int64) * total_q + begin_q + query
        tl.store(lse_ptr + lse_rows, lse, mask=in_range)
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
