"""relative_bias: the gradient of rel from packed sequences.

Generated from variants/relative_bias.yaml by

    flashgen build variants/relative_bias.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl

from flashgen.runtime.device.learned import accumulate, diagonal_sums, shear
from flashgen.runtime.device.packed import owned_tile, sequence_range

from .backward_inputs import _d_rel_at, _d_rel_is_one
from .pair import _score


@triton.jit(do_not_specialize=[
    "heads", "kv_heads", "batch", "total_q", "total_k", "max_seqlen_q", "max_seqlen_k", "head_dim", "v_head_dim",
    "num_rows",
])
def _backward_inputs_varlen(
    q_ptr, k_ptr, v_ptr, d_out_ptr, lse_ptr, delta_ptr, d_rel_ptr, cu_seqlens_q_ptr, cu_seqlens_k_ptr, rel_ptr,
    stride_rel_0,
    stride_qh, stride_qm, stride_kh, stride_kn, stride_vh, stride_vn, stride_oh, stride_om, num_rows,
    scale, heads, kv_heads, batch, total_q, total_k, max_seqlen_q, max_seqlen_k, head_dim, v_head_dim,
    BM: tl.constexpr, BN: tl.constexpr, HEAD_DIM: tl.constexpr, V_HEAD_DIM: tl.constexpr,
):
    # Grid: one program for each slot of BM packed queries, where a sequence has a tile, of each head.
    # It walks along the keys as _forward does: p = exp(logit - lse), ds_out = p * (d_out v^T - delta), which is added
    # up where each learned input is read, times the derivative of the score there.
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
        return

    q_base = q_ptr + first_query.to(tl.int64) * stride_qm + h.to(tl.int64) * stride_qh
    k_base = k_ptr + first_key.to(tl.int64) * stride_kn + kv_h.to(tl.int64) * stride_kh
    v_base = v_ptr + first_key.to(tl.int64) * stride_vn + kv_h.to(tl.int64) * stride_vh
    do_base = d_out_ptr + first_query.to(tl.int64) * stride_om + h.to(tl.int64) * stride_oh
    q_desc = tl.make_tensor_descriptor(q_base, [q_len, head_dim], [stride_qm, 1], [BM, HEAD_DIM])
    k_desc = tl.make_tensor_descriptor(k_base, [kv_len, head_dim], [stride_kn, 1], [BN, HEAD_DIM])
    v_desc = tl.make_tensor_descriptor(v_base, [kv_len, v_head_dim], [stride_vn, 1], [BN, V_HEAD_DIM])
    do_desc = tl.make_tensor_descriptor(do_base, [q_len, v_head_dim], [stride_om, 1], [BM, V_HEAD_DIM])

    # Rows beyond the last are taken as the last: they read what exists and change no minimum or maximum.
    q = (tl.minimum(rows, q_len - 1) + (kv_len - q_len))[:, None]
    q_first = row0 + (kv_len - q_len)
    q_last = tl.minimum(row0 + BM, q_len) - 1 + (kv_len - q_len)
    rel_base = rel_ptr + h.to(tl.int64) * stride_rel_0
    h_scaled = h * 129

    q_tile = q_desc.load([row0, 0])
    do_tile = do_desc.load([row0, 0])
    row = h.to(tl.int64) * num_rows + first_query + rows
    lse = tl.load(lse_ptr + row, mask=rows < q_len, other=float("inf"))[:, None]
    delta = tl.load(delta_ptr + row, mask=rows < q_len, other=0.0)[:, None]

    # Full tiles.
    full_end = kv_len // BN * BN
    for start in tl.range(0, full_end, BN):
        k_tile = k_desc.load([start, 0])
        v_tile = v_desc.load([start, 0])
        qk = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        k = start + tl.arange(0, BN)[None, :]
        x = _score(qk, q, k, rel_base, scale)
        p = tl.exp2((x - lse) * 1.4426950408889634)
        dp = tl.dot(do_tile, v_tile.T, input_precision="ieee")
        ds_out = p * (dp - delta)
        k_first = start
        k_last = tl.minimum(start + BN, kv_len) - 1
        # d rel[h, clamp(q - k, -64, 64) + 64]
        if _d_rel_is_one(k_first, k_last, q_first, q_last):
            # All pairs of the tile share one element.
            accumulate(d_rel_ptr, h_scaled + (tl.minimum(tl.maximum(q_first - k_first, -64), 64) + 64), tl.sum(ds_out))
        else:
            sheared = shear(ds_out)
            for wrap in tl.static_range((BM + BN - 2) // BN + 1):
                # The keys that are as far from the tile's first query as the pairs of each diagonal are apart.
                along = start - wrap * BN + tl.arange(0, BN)[None, :]
                accumulate(d_rel_ptr, _d_rel_at(along, h_scaled, q_first), diagonal_sums(sheared, wrap))

    # The ragged end.
    if full_end < kv_len:
        start = full_end
        k_tile = k_desc.load([start, 0])
        v_tile = v_desc.load([start, 0])
        qk = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        col = start + tl.arange(0, BN)[None, :]
        k = tl.minimum(col, kv_len - 1)
        x = _score(qk, q, k, rel_base, scale)
        x = tl.where(col < kv_len, x, -float("inf"))
        p = tl.exp2((x - lse) * 1.4426950408889634)
        dp = tl.dot(do_tile, v_tile.T, input_precision="ieee")
        ds_out = p * (dp - delta)
        k_first = start
        k_last = tl.minimum(start + BN, kv_len) - 1
        # d rel[h, clamp(q - k, -64, 64) + 64]
        if _d_rel_is_one(k_first, k_last, q_first, q_last):
            # All pairs of the tile share one element.
            accumulate(d_rel_ptr, h_scaled + (tl.minimum(tl.maximum(q_first - k_first, -64), 64) + 64), tl.sum(ds_out))
        else:
            sheared = shear(ds_out)
            for wrap in tl.static_range((BM + BN - 2) // BN + 1):
                # The keys that are as far from the tile's first query as the pairs of each diagonal are apart.
                along = start - wrap * BN + tl.arange(0, BN)[None, :]
                accumulate(d_rel_ptr, _d_rel_at(along, h_scaled, q_first), diagonal_sums(sheared, wrap))
