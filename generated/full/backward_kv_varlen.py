"""full: dk and dv of packed sequences.

Generated from variants/full.yaml by

    flashgen build variants/full.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl

from flashgen.runtime.device.packed import owned_tile, sequence_range


@triton.jit(do_not_specialize=[
    "heads", "kv_heads", "batch", "total_q", "total_k", "max_seqlen_q", "max_seqlen_k", "head_dim", "v_head_dim",
    "num_rows",
])
def _backward_kv_varlen(
    q_ptr, k_ptr, v_ptr, d_out_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, cu_seqlens_q_ptr, cu_seqlens_k_ptr,
    stride_qh, stride_qm, stride_kh, stride_kn, stride_vh, stride_vn, stride_oh, stride_om, num_rows,
    scale, heads, kv_heads, batch, total_q, total_k, max_seqlen_q, max_seqlen_k, head_dim, v_head_dim,
    BM: tl.constexpr, BN: tl.constexpr, HEAD_DIM: tl.constexpr, V_HEAD_DIM: tl.constexpr,
):
    # Grid: one program for each slot of BN packed keys, where a sequence has a tile, of each query head. It
    # walks along the queries that see some of its keys. Tiles are transposed, [BN, BM], so that p and ds enter the
    # products for dk and dv from registers: p = exp2(logit - lse), dv = p d_out, ds = p * (v d_out^T - delta), dk =
    # scale ds q.
    # lse and delta are what _delta writes, num_rows for each head.
    num_slots = total_k // BN + batch + 1
    h = tl.program_id(0) // num_slots
    kv_h = h // (heads // kv_heads)
    slot = tl.program_id(0) % num_slots
    b, tile, first_key, kv_len = owned_tile(cu_seqlens_k_ptr, slot, batch, total_k, max_seqlen_k, BN)
    if tile * BN >= kv_len:
        return
    first_query, q_len = sequence_range(cu_seqlens_q_ptr, b, batch, total_q, max_seqlen_q)
    col0 = tile * BN
    cols = col0 + tl.arange(0, BN)
    in_range = cols < kv_len
    out_rows = (first_key + cols).to(tl.int64) * heads + h
    dims = tl.arange(0, HEAD_DIM)
    v_dims = tl.arange(0, V_HEAD_DIM)
    if q_len == 0:
        # Nobody sees these keys.
        tl.store(
            dk_ptr + out_rows[:, None] * head_dim + dims[None, :],
            tl.zeros([BN, HEAD_DIM], dk_ptr.dtype.element_ty),
            mask=in_range[:, None] & (dims < head_dim)[None, :],
        )
        tl.store(
            dv_ptr + out_rows[:, None] * v_head_dim + v_dims[None, :],
            tl.zeros([BN, V_HEAD_DIM], dv_ptr.dtype.element_ty),
            mask=in_range[:, None] & (v_dims < v_head_dim)[None, :],
        )
        return

    q_base = q_ptr + first_query.to(tl.int64) * stride_qm + h.to(tl.int64) * stride_qh
    k_base = k_ptr + first_key.to(tl.int64) * stride_kn + kv_h.to(tl.int64) * stride_kh
    v_base = v_ptr + first_key.to(tl.int64) * stride_vn + kv_h.to(tl.int64) * stride_vh
    do_base = d_out_ptr + first_query.to(tl.int64) * stride_om + h.to(tl.int64) * stride_oh
    q_desc = tl.make_tensor_descriptor(q_base, [q_len, head_dim], [stride_qm, 1], [BM, HEAD_DIM])
    k_desc = tl.make_tensor_descriptor(k_base, [kv_len, head_dim], [stride_kn, 1], [BN, HEAD_DIM])
    v_desc = tl.make_tensor_descriptor(v_base, [kv_len, v_head_dim], [stride_vn, 1], [BN, V_HEAD_DIM])
    do_desc = tl.make_tensor_descriptor(do_base, [q_len, v_head_dim], [stride_om, 1], [BM, V_HEAD_DIM])
    row0 = h.to(tl.int64) * num_rows + first_query
    qk_scale = scale * 1.4426950408889634

    # Rows below q_len see some key of the tile, those below full_end each of them.
    full_end = tl.where(col0 + BN > kv_len, 0, q_len)

    k_tile = k_desc.load([col0, 0])
    v_tile = v_desc.load([col0, 0])
    dk = tl.zeros([BN, HEAD_DIM], tl.float32)
    dv = tl.zeros([BN, V_HEAD_DIM], tl.float32)
    for start in tl.range(0, q_len, BM):
        q_tile = q_desc.load([start, 0])
        rows = start + tl.arange(0, BM)
        lse = tl.load(lse_ptr + row0 + rows, mask=rows < q_len, other=float("inf"))[None, :]
        qk = tl.dot(k_tile, q_tile.T, input_precision="ieee")
        if start + BM > full_end:
            qk = tl.where((cols < kv_len)[:, None], qk, -float("inf"))
        p = tl.exp2(qk * qk_scale - lse)
        do_tile = do_desc.load([start, 0])
        dv = tl.dot(p.to(do_tile.dtype), do_tile, dv, input_precision="ieee")
        dp = tl.dot(v_tile, do_tile.T, input_precision="ieee")
        delta = tl.load(delta_ptr + row0 + rows, mask=rows < q_len, other=0.0)[None, :]
        ds = (p * (dp - delta)).to(q_tile.dtype)
        dk = tl.dot(ds, q_tile, dk, input_precision="ieee")

    tl.store(
        dk_ptr + out_rows[:, None] * head_dim + dims[None, :],
        (dk * scale).to(dk_ptr.dtype.element_ty),
        mask=in_range[:, None] & (dims < head_dim)[None, :],
    )
    tl.store(
        dv_ptr + out_rows[:, None] * v_head_dim + v_dims[None, :],
        dv.to(dv_ptr.dtype.element_ty),
        mask=in_range[:, None] & (v_dims < v_head_dim)[None, :],
    )
