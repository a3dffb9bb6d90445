"""full: dq of packed sequences.

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
def _backward_q_varlen(
    q_ptr, k_ptr, v_ptr, d_out_ptr, lse_ptr, delta_ptr, dq_ptr, cu_seqlens_q_ptr, cu_seqlens_k_ptr,
    stride_qh, stride_qm, stride_kh, stride_kn, stride_vh, stride_vn, stride_oh, stride_om, num_rows,
    scale, heads, kv_heads, batch, total_q, total_k, max_seqlen_q, max_seqlen_k, head_dim, v_head_dim,
    BM: tl.constexpr, BN: tl.constexpr, HEAD_DIM: tl.constexpr, V_HEAD_DIM: tl.constexpr,
):
    # Grid: one program for each slot of BM packed queries, where a sequence has a tile, of each head.
    # It walks along the keys as _forward does: p = exp2(logit - lse), ds = p * (d_out v^T - delta), dq = scale ds k.
    # lse and delta are what _delta writes, num_rows for each head.
    num_slots = total_q // BM + batch + 1
    h = tl.program_id(0) // num_slots
    kv_h = h // (heads // kv_heads)
    slot = tl.program_id(0) % num_slots
    b, tile, first_query, q_len = owned_tile(cu_seqlens_q_ptr, slot, batch, total_q, max_seqlen_q, BM)
    if tile * BM >= q_len:
        return
    first_key, kv_len = sequence_range(cu_seqlens_k_ptr, b, batch, total_k, max_seqlen_k)
    row0 = tile * BM
    rows = row0 + tl.arange(0, BM)
    if kv_len == 0:
        # There is nothing to see.
        out_rows = (first_query + rows).to(tl.int64) * heads + h
        dims = tl.arange(0, HEAD_DIM)
        tl.store(
            dq_ptr + out_rows[:, None] * head_dim + dims[None, :],
            tl.zeros([BM, HEAD_DIM], dq_ptr.dtype.element_ty),
            mask=(rows < q_len)[:, None] & (dims < head_dim)[None, :],
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

    qk_scale = scale * 1.4426950408889634

    q_tile = q_desc.load([row0, 0])
    do_tile = do_desc.load([row0, 0])
    row = h.to(tl.int64) * num_rows + first_query + rows
    lse = tl.load(lse_ptr + row, mask=rows < q_len, other=float("inf"))[:, None]
    delta = tl.load(delta_ptr + row, mask=rows < q_len, other=0.0)[:, None]
    dq = tl.zeros([BM, HEAD_DIM], tl.float32)

    # Full tiles.
    full_end = kv_len // BN * BN
    for start in tl.range(0, full_end, BN):
        k_tile = k_desc.load([start, 0])
        v_tile = v_desc.load([start, 0])
        qk = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        p = tl.exp2(qk * qk_scale - lse)
        dp = tl.dot(do_tile, v_tile.T, input_precision="ieee")
        ds = p * (dp - delta)
        dq = tl.dot(ds.to(k_tile.dtype), k_tile, dq, input_precision="ieee")

    # The ragged end.
    if full_end < kv_len:
        start = full_end
        k_tile = k_desc.load([start, 0])
        v_tile = v_desc.load([start, 0])
        qk = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        k = start + tl.arange(0, BN)[None, :]
        qk = tl.where(k < kv_len, qk, -float("inf"))
        p = tl.exp2(qk * qk_scale - lse)
        dp = tl.dot(do_tile, v_tile.T, input_precision="ieee")
        ds = p * (dp - delta)
        dq = tl.dot(ds.to(k_tile.dtype), k_tile, dq, input_precision="ieee")

    out_rows = (first_query + rows).to(tl.int64) * heads + h
    dims = tl.arange(0, HEAD_DIM)
    tl.store(
        dq_ptr + out_rows[:, None] * head_dim + dims[None, :],
        (dq * scale).to(dq_ptr.dtype.element_ty),
        mask=(rows < q_len)[:, None] & (dims < head_dim)[None, :],
    )
