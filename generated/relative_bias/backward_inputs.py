"""relative_bias: the gradient of rel.

Generated from variants/relative_bias.yaml by

    flashgen build variants/relative_bias.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl

from flashgen.runtime.device.learned import accumulate, diagonal_sums, shear
from flashgen.runtime.device.packed import delta_row, load_rows, owned_tile, sequence_range

from .pair import _score


@triton.jit
def _d_rel_at(k, h_scaled, q_first):
    """The element rel[h, clamp(q - k, -64, 64) + 64], for queries at q_first."""
    return h_scaled + tl.minimum(tl.maximum(q_first - k, -64), 64) + 64


@triton.jit
def _d_rel_is_one(k_first, k_last, q_first, q_last):
    """Whether all pairs of a tile read the same element, rel[h, clamp(q - k, -64, 64) + 64]."""
    return tl.minimum(tl.maximum(q_first - k_last, -64), 64) == tl.minimum(tl.maximum(q_last - k_first, -64), 64)


@triton.jit(do_not_specialize=[
    "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "num_seqs", "total_q", "total_k", "num_rows",
])
def _backward_inputs(
    q_ptr, k_ptr, v_ptr, d_out_ptr, lse_ptr, delta_ptr, d_rel_ptr, rel_ptr, stride_rel_0,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_ob, stride_oh, stride_om, num_rows,
    scale, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim,
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k,
    BM: tl.constexpr, BN: tl.constexpr, HEAD_DIM: tl.constexpr, V_HEAD_DIM: tl.constexpr,
    SKIP_UNIFORM: tl.constexpr,
):
    # Grid: one program for each tile of BM query rows of each head of each batch element.
    # Packed sequences are where cu_seqlens are not None; see owned_tile for both.
    # It walks along the keys as _forward does: p = exp(logit - lse), ds_out = p * (d_out v^T - delta), which is added
    # up where each learned input is read, times the derivative of the score there.
    # Where SKIP_UNIFORM, tiles whose pairs all share one element are left out: _backward_kv_sm90 has added these up.
    # lse and delta are what _delta writes, num_rows for each head.
    head, b, h, tile, begin_q, q_len = owned_tile(cu_seqlens_q_ptr, num_seqs, total_q, q_len, heads, BM)
    begin_k, kv_len = sequence_range(cu_seqlens_k_ptr, b, num_seqs, total_k, kv_len)
    kv_h = h // (heads // kv_heads)
    row0 = tile * BM
    if cu_seqlens_q_ptr is not None and ((row0 >= q_len) | (kv_len == 0)):
        # There is no such tile, or nothing to see.
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
    rel_base = rel_ptr + h.to(tl.int64) * stride_rel_0
    h_scaled = h * 129
    stop = kv_len
    full_end = kv_len // BN * BN
    first = 0
    if SKIP_UNIFORM:
        # Left are the tiles from the first to the last whose pairs do not share one element, 64 looked at at once.
        begin, end = first, stop
        first, stop = end, begin
        for some in range(begin, end, 64 * BN):
            starts = some + BN * tl.arange(0, 64)
            left = (starts < end) & ~(_d_rel_is_one(starts, tl.minimum(starts + BN, kv_len) - 1, q_first, q_last))
            first = tl.minimum(first, tl.min(tl.where(left, starts, end)))
            stop = tl.maximum(stop, tl.max(tl.where(left, tl.minimum(starts + BN, end), begin)))

    q_tile = q_desc.load([row0, 0])
    do_tile = do_desc.load([row0, 0])
    row = delta_row(cu_seqlens_q_ptr, head, b, begin_q, num_rows) + rows
    lse = load_rows(cu_seqlens_q_ptr, lse_ptr + row, rows, q_len, float("inf"))[:, None]
    delta = load_rows(cu_seqlens_q_ptr, delta_ptr + row, rows, q_len, 0.0)[:, None]

    # Full tiles: each row sees each key, no mask.
    for start in tl.range(first, tl.minimum(full_end, stop), BN):
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
            if not SKIP_UNIFORM:
                accumulate(
                    d_rel_ptr, h_scaled + (tl.minimum(tl.maximum(q_first - k_first, -64), 64) + 64), tl.sum(ds_out)
                )
        else:
            sheared = shear(ds_out)
            for wrap in tl.static_range((BM + BN - 2) // BN + 1):
                # The keys that are as far from the tile's first query as the pairs of each diagonal are apart.
                along = start - wrap * BN + tl.arange(0, BN)[None, :]
                accumulate(d_rel_ptr, _d_rel_at(along, h_scaled, q_first), diagonal_sums(sheared, wrap))

    # The ragged end.
    for start in tl.range(tl.maximum(full_end, first), stop, BN):
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
            if not SKIP_UNIFORM:
                accumulate(
                    d_rel_ptr, h_scaled + (tl.minimum(tl.maximum(q_first - k_first, -64), 64) + 64), tl.sum(ds_out)
                )
        else:
            sheared = shear(ds_out)
            for wrap in tl.static_range((BM + BN - 2) // BN + 1):
                # The keys that are as far from the tile's first query as the pairs of each diagonal are apart.
                along = start - wrap * BN + tl.arange(0, BN)[None, :]
                accumulate(d_rel_ptr, _d_rel_at(along, h_scaled, q_first), diagonal_sums(sheared, wrap))
