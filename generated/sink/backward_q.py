"""sink: dq.

Generated from variants/sink.yaml by

    flashgen build variants/sink.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl

from flashgen.runtime.device.packed import delta_row, load_rows, output_rows, owned_tile, sequence_range, store_zeros

from .pair import _visible


@triton.jit(do_not_specialize=[
    "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "num_seqs", "total_q", "total_k", "num_rows",
])
def _backward_q(
    q_ptr, k_ptr, v_ptr, d_out_ptr, lse_ptr, delta_ptr, dq_ptr,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_ob, stride_oh, stride_om, num_rows,
    scale, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k,
    BM: tl.constexpr, BN: tl.constexpr, HEAD_DIM: tl.constexpr, V_HEAD_DIM: tl.constexpr,
):
    # Grid: one program for each tile of BM query rows of each head of each batch element, longest rows first.
    # Packed sequences are where cu_seqlens are not None; see owned_tile for both.
    # It walks along the keys as _forward does: p = exp2(logit - lse), ds = p * (d_out v^T - delta), dq = scale ds k.
    # lse and delta are what _delta writes, num_rows for each head.
    head, b, h, tile, begin_q, q_len = owned_tile(
        cu_seqlens_q_ptr, num_seqs, total_q, q_len, heads, BM, LAST_FIRST=True
    )
    begin_k, kv_len = sequence_range(cu_seqlens_k_ptr, b, num_seqs, total_k, kv_len)
    kv_h = h // (heads // kv_heads)
    row0 = tile * BM
    if cu_seqlens_q_ptr is not None and ((row0 >= q_len) | (kv_len == 0)):
        # There is no such tile, or nothing to see.
        store_zeros(dq_ptr, row0, head, begin_q, q_len, heads, head_dim, BM, HEAD_DIM)
        return

    q_base = q_ptr + begin_q.to(tl.int64) * stride_qb + h.to(tl.int64) * stride_qh
    k_base = k_ptr + begin_k.to(tl.int64) * stride_kb + kv_h.to(tl.int64) * stride_kh
    v_base = v_ptr + begin_k.to(tl.int64) * stride_vb + kv_h.to(tl.int64) * stride_vh
    do_base = d_out_ptr + begin_q.to(tl.int64) * stride_ob + h.to(tl.int64) * stride_oh
    q_desc = tl.make_tensor_descriptor(q_base, [q_len, head_dim], [stride_qm, 1], [BM, HEAD_DIM])
    k_desc = tl.make_tensor_descriptor(k_base, [kv_len, head_dim], [stride_kn, 1], [BN, HEAD_DIM])
    v_desc = tl.make_tensor_descriptor(v_base, [kv_len, v_head_dim], [stride_vn, 1], [BN, V_HEAD_DIM])
    do_desc = tl.make_tensor_descriptor(do_base, [q_len, v_head_dim], [stride_om, 1], [BM, V_HEAD_DIM])

    rows = row0 + tl.arange(0, BM)
    # Rows beyond the last are taken as the last: they read what exists and change no minimum or maximum.
    q = (tl.minimum(rows, q_len - 1) + (kv_len - q_len))[:, None]
    q_first = row0 + (kv_len - q_len)
    q_last = tl.minimum(row0 + BM, q_len) - 1 + (kv_len - q_len)
    qk_scale = scale * 1.4426950408889634

    # Keys below stop are seen by some row of the tile, those below full_end by each row.
    stop = q_last + 1
    full_end = tl.maximum(q_first + 1, 0) // BN * BN

    q_tile = q_desc.load([row0, 0])
    do_tile = do_desc.load([row0, 0])
    row = delta_row(cu_seqlens_q_ptr, head, b, begin_q, num_rows) + rows
    lse = load_rows(cu_seqlens_q_ptr, lse_ptr + row, rows, q_len, float("inf"))[:, None]
    delta = load_rows(cu_seqlens_q_ptr, delta_ptr + row, rows, q_len, 0.0)[:, None]
    dq = tl.zeros([BM, HEAD_DIM], tl.float32)

    # Full tiles: each row sees each key, no mask.
    for start in tl.range(0, full_end, BN):
        k_tile = k_desc.load([start, 0])
        v_tile = v_desc.load([start, 0])
        qk = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        p = tl.exp2(qk * qk_scale - lse)
        dp = tl.dot(do_tile, v_tile.T, input_precision="ieee")
        ds = p * (dp - delta)
        dq = tl.dot(ds.to(k_tile.dtype), k_tile, dq, input_precision="ieee")

    # Mixed tiles.
    for start in tl.range(full_end, stop, BN):
        k_tile = k_desc.load([start, 0])
        v_tile = v_desc.load([start, 0])
        qk = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        k = start + tl.arange(0, BN)[None, :]
        qk = tl.where(_visible(q, k), qk, -float("inf"))
        p = tl.exp2(qk * qk_scale - lse)
        dp = tl.dot(do_tile, v_tile.T, input_precision="ieee")
        ds = p * (dp - delta)
        dq = tl.dot(ds.to(k_tile.dtype), k_tile, dq, input_precision="ieee")

    out_rows = output_rows(cu_seqlens_q_ptr, rows, head, begin_q, q_len, heads)
    dims = tl.arange(0, HEAD_DIM)
    tl.store(
        dq_ptr + out_rows[:, None] * head_dim + dims[None, :],
        (dq * scale).to(dq_ptr.dtype.element_ty),
        mask=(rows < q_len)[:, None] & (dims < head_dim)[None, :],
    )
