"""gemma2: dq.

Generated from variants/gemma2.yaml by

    flashgen build variants/gemma2.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl

from .pair import _score_and_slope, _visible


@triton.jit(do_not_specialize=["heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "num_rows"])
def _backward_q(
    q_ptr, k_ptr, v_ptr, d_out_ptr, lse_ptr, delta_ptr, dq_ptr,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_ob, stride_oh, stride_om, num_rows,
    scale, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim,
    BM: tl.constexpr, BN: tl.constexpr, HEAD_DIM: tl.constexpr, V_HEAD_DIM: tl.constexpr,
):
    # Grid: one program for each tile of BM query rows of each head of each batch element.
    # It walks along the keys as _forward does: p = exp2(logit - lse), ds = p * (d_out v^T - delta) * slope, dq = scale
    # ds k.
    # lse and delta are what _delta writes, num_rows for each head.
    PRECISE: tl.constexpr = q_ptr.dtype.element_ty == tl.float32
    num_tiles = tl.cdiv(q_len, BM)
    tile = tl.program_id(0) % num_tiles
    head = tl.program_id(0) // num_tiles
    b = head // heads
    h = head % heads
    kv_h = h // (heads // kv_heads)
    row0 = tile * BM

    q_base = q_ptr + b.to(tl.int64) * stride_qb + h.to(tl.int64) * stride_qh
    k_base = k_ptr + b.to(tl.int64) * stride_kb + kv_h.to(tl.int64) * stride_kh
    v_base = v_ptr + b.to(tl.int64) * stride_vb + kv_h.to(tl.int64) * stride_vh
    do_base = d_out_ptr + b.to(tl.int64) * stride_ob + h.to(tl.int64) * stride_oh
    q_desc = tl.make_tensor_descriptor(q_base, [q_len, head_dim], [stride_qm, 1], [BM, HEAD_DIM])
    k_desc = tl.make_tensor_descriptor(k_base, [kv_len, head_dim], [stride_kn, 1], [BN, HEAD_DIM])
    v_desc = tl.make_tensor_descriptor(v_base, [kv_len, v_head_dim], [stride_vn, 1], [BN, V_HEAD_DIM])
    do_desc = tl.make_tensor_descriptor(do_base, [q_len, v_head_dim], [stride_om, 1], [BM, V_HEAD_DIM])

    rows = row0 + tl.arange(0, BM)
    # Rows beyond the last are taken as the last: they read what exists and change no minimum or maximum.
    q = (tl.minimum(rows, q_len - 1) + (kv_len - q_len))[:, None]
    q_first = row0 + (kv_len - q_len)
    q_last = tl.minimum(row0 + BM, q_len) - 1 + (kv_len - q_len)
    qk_scale = scale * 0.02
    r = q - 4095

    # Keys [first, stop) are seen by some row of the tile, [full_start, full_end) by each row.
    first = tl.maximum(q_first - 4095, 0) // BN * BN
    stop = tl.maximum(q_last + 1, first)
    full_start = tl.minimum(tl.cdiv(tl.maximum(q_last - 4095, 0), BN), tl.cdiv(stop, BN)) * BN
    full_end = tl.maximum(tl.maximum(q_first + 1, 0) // BN * BN, full_start)

    q_tile = q_desc.load([row0, 0])
    do_tile = do_desc.load([row0, 0])
    row = head.to(tl.int64) * num_rows + rows
    lse = tl.load(lse_ptr + row)[:, None]
    delta = tl.load(delta_ptr + row)[:, None]
    dq = tl.zeros([BM, HEAD_DIM], tl.float32)

    # The mixed tiles on both sides share the loop of the full ones.
    for start in tl.range(first, stop, BN):
        k_tile = k_desc.load([start, 0])
        v_tile = v_desc.load([start, 0])
        qk = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        k = start + tl.arange(0, BN)[None, :]
        x, slope = _score_and_slope(qk, PRECISE, qk_scale)
        if (start < full_start) | (start >= full_end):
            shown = _visible(q, k, r)
            x = tl.where(shown, x, -float("inf"))
            slope = tl.where(shown, slope, 0.0)
        p = tl.exp2(x - lse)
        dp = tl.dot(do_tile, v_tile.T, input_precision="ieee")
        ds = p * (dp - delta) * slope
        dq = tl.dot(ds.to(k_tile.dtype), k_tile, dq, input_precision="ieee")

    out_rows = head.to(tl.int64) * q_len + rows
    dims = tl.arange(0, HEAD_DIM)
    tl.store(
        dq_ptr + out_rows[:, None] * head_dim + dims[None, :],
        (dq * scale).to(dq_ptr.dtype.element_ty),
        mask=(rows < q_len)[:, None] & (dims < head_dim)[None, :],
    )
