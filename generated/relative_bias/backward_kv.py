"""relative_bias: dk and dv, and dq where a config fuses it.

Generated from variants/relative_bias.yaml by

    flashgen build variants/relative_bias.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl

from flashgen.runtime.device.packed import (
    delta_row, first_row, load_rows, output_rows, owned_tile, sequence_range, store_zeros,
)

from .pair import _score


@triton.jit(do_not_specialize=[
    "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "num_seqs", "total_q", "total_k", "num_rows",
])
def _backward_kv(
    q_ptr, k_ptr, v_ptr, d_out_ptr, lse_ptr, delta_ptr, dq_ptr, dk_ptr, dv_ptr, rel_ptr, stride_rel_0,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_ob, stride_oh, stride_om, num_rows, stride_dqm,
    scale, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k,
    BM: tl.constexpr, BN: tl.constexpr, HEAD_DIM: tl.constexpr, V_HEAD_DIM: tl.constexpr, FUSE_DQ: tl.constexpr,
):
    # Grid: one program for each tile of BN keys of each query head of each batch element. It walks along the queries
    # that see some of its keys. Tiles are transposed, [BN, BM], so that p and ds enter the products for dk and dv
    # from registers: p = exp(logit - lse), dv = p d_out, ds = p * (v d_out^T - delta), dk = scale ds q.
    # lse and delta are what _delta writes, num_rows for each head. Where FUSE_DQ, each tile's part of dq = scale ds^T k
    # is added in memory, in float32 and in no fixed order.
    # Packed sequences are where cu_seqlens are not None; see owned_tile for both.
    head, b, h, tile, begin_k, kv_len = owned_tile(cu_seqlens_k_ptr, num_seqs, total_k, kv_len, heads, BN)
    begin_q, q_len = sequence_range(cu_seqlens_q_ptr, b, num_seqs, total_q, q_len)
    kv_h = h // (heads // kv_heads)
    col0 = tile * BN
    if cu_seqlens_k_ptr is not None and ((col0 >= kv_len) | (q_len == 0)):
        # There is no such tile, or nobody sees these keys.
        store_zeros(dk_ptr, col0, head, begin_k, kv_len, heads, head_dim, BN, HEAD_DIM)
        store_zeros(dv_ptr, col0, head, begin_k, kv_len, heads, v_head_dim, BN, V_HEAD_DIM)
        return

    q_base = q_ptr + begin_q.to(tl.int64) * stride_qb + h.to(tl.int64) * stride_qh
    k_base = k_ptr + begin_k.to(tl.int64) * stride_kb + kv_h.to(tl.int64) * stride_kh
    v_base = v_ptr + begin_k.to(tl.int64) * stride_vb + kv_h.to(tl.int64) * stride_vh
    do_base = d_out_ptr + begin_q.to(tl.int64) * stride_ob + h.to(tl.int64) * stride_oh
    q_desc = tl.make_tensor_descriptor(q_base, [q_len, head_dim], [stride_qm, 1], [BM, HEAD_DIM])
    k_desc = tl.make_tensor_descriptor(k_base, [kv_len, head_dim], [stride_kn, 1], [BN, HEAD_DIM])
    v_desc = tl.make_tensor_descriptor(v_base, [kv_len, v_head_dim], [stride_vn, 1], [BN, V_HEAD_DIM])
    do_desc = tl.make_tensor_descriptor(do_base, [q_len, v_head_dim], [stride_om, 1], [BM, V_HEAD_DIM])
    row0 = delta_row(cu_seqlens_q_ptr, head, b, begin_q, num_rows)
    if FUSE_DQ:
        dq_row = first_row(cu_seqlens_q_ptr, head, begin_q, q_len, total_q)
        dq_desc = tl.make_tensor_descriptor(
            dq_ptr + dq_row * stride_dqm, [q_len, head_dim], [stride_dqm, 1], [BM, HEAD_DIM]
        )

    cols = col0 + tl.arange(0, BN)
    # Keys beyond the last are taken as the last: they read what exists and change no minimum or maximum.
    k = tl.minimum(cols, kv_len - 1)[:, None]
    rel_base = rel_ptr + h.to(tl.int64) * stride_rel_0

    # Rows below q_len see some key of the tile, those below full_end each of them.
    full_end = tl.where(col0 + BN > kv_len, 0, q_len)

    k_tile = k_desc.load([col0, 0])
    v_tile = v_desc.load([col0, 0])
    dk = tl.zeros([BN, HEAD_DIM], tl.float32)
    dv = tl.zeros([BN, V_HEAD_DIM], tl.float32)
    for start in tl.range(0, q_len, BM):
        q_tile = q_desc.load([start, 0])
        rows = start + tl.arange(0, BM)
        q = (tl.minimum(rows, q_len - 1) + (kv_len - q_len))[None, :]
        lse = load_rows(cu_seqlens_q_ptr, lse_ptr + row0 + rows, rows, q_len, float("inf"))[None, :]
        qk = tl.dot(k_tile, q_tile.T, input_precision="ieee")
        x = _score(qk, q, k, rel_base, scale)
        if start + BM > full_end:
            x = tl.where((cols < kv_len)[:, None] & (rows < q_len)[None, :], x, -float("inf"))
        p = tl.exp2((x - lse) * 1.4426950408889634)
        do_tile = do_desc.load([start, 0])
        dv = tl.dot(p.to(do_tile.dtype), do_tile, dv, input_precision="ieee")
        dp = tl.dot(v_tile, do_tile.T, input_precision="ieee")
        delta = load_rows(cu_seqlens_q_ptr, delta_ptr + row0 + rows, rows, q_len, 0.0)[None, :]
        ds = (p * (dp - delta)).to(q_tile.dtype)
        dk = tl.dot(ds, q_tile, dk, input_precision="ieee")
        if FUSE_DQ:
            dq = tl.dot(ds.T, k_tile, input_precision="ieee")
            dq_desc.atomic_add([start, 0], dq)

    out_rows = output_rows(cu_seqlens_k_ptr, cols, head, begin_k, kv_len, heads)
    in_range = cols < kv_len
    dims = tl.arange(0, HEAD_DIM)
    tl.store(
        dk_ptr + out_rows[:, None] * head_dim + dims[None, :],
        (dk * scale).to(dk_ptr.dtype.element_ty),
        mask=in_range[:, None] & (dims < head_dim)[None, :],
    )
    v_dims = tl.arange(0, V_HEAD_DIM)
    tl.store(
        dv_ptr + out_rows[:, None] * v_head_dim + v_dims[None, :],
        dv.to(dv_ptr.dtype.element_ty),
        mask=in_range[:, None] & (v_dims < v_head_dim)[None, :],
    )
