"""The kernel that merges the splits of rows whose keys several programs share."""

from __future__ import annotations

import triton
import triton.language as tl

from flashgen.runtime.device.plan import query_range
from flashgen.runtime.device.rows import exp_of, finished, largest_logit


@triton.jit(do_not_specialize=["batch", "total_q", "heads", "kv_heads", "q_len", "num_tiles", "num_splits"])
def merge_splits(
    out_ptr, lse_ptr, max_ptr, residue_ptr, acc_ptr, m_ptr, l_ptr, shift_ptr, sinks_ptr,
    items_ptr, count_ptr, cu_seqlens_q_ptr,
    stride_ob, stride_oh, stride_om, stride_lb, stride_lh, stride_lm,
    batch, total_q, heads, kv_heads, q_len, v_head_dim, num_tiles, num_splits,
    BM: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, SPLITS: tl.constexpr, V_HEAD_DIM: tl.constexpr, NATURAL: tl.constexpr,
):  # fmt: skip
    # Grid: one program for each of PARTS parts, of ROWS rows, of each tile of each KV head; by items each is a tile.
    # acc [items, kv_heads, BM, V_HEAD_DIM], m, l and shift [items, kv_heads, BM]: what the splits of a tile, one item
    # after the other, have found; the logits of m are NATURAL or in units of log2. By items q_len is the longest.
    part = tl.program_id(0) % PARTS
    kv_h = tl.program_id(0) // PARTS % kv_heads
    tile = tl.program_id(0) // PARTS // kv_heads
    if items_ptr is None:
        item = tile * num_splits
        b = tile // num_tiles
        tile = tile % num_tiles
        out_at = b.to(tl.int64) * stride_ob
        lse_at = b.to(tl.int64) * stride_lb
    else:
        item = tile
        if item >= tl.load(count_ptr):
            return
        # The first split's program merges them. What is whole needs no merge; what has no keys is written here.
        split = tl.load(items_ptr + 4 * item + 2)
        num_splits = tl.minimum(tl.load(items_ptr + 4 * item + 3), tl.load(count_ptr) - item)
        if (split > 0) | (num_splits == 1):
            return
        b = tl.load(items_ptr + 4 * item)
        tile = tl.load(items_ptr + 4 * item + 1)
        first, q_len = query_range(cu_seqlens_q_ptr, b, batch, total_q, q_len)
        out_at = first.to(tl.int64) * stride_om
        lse_at = first.to(tl.int64) * stride_lm
    group = heads // kv_heads
    splits = tl.arange(0, SPLITS)
    cols = tl.arange(0, V_HEAD_DIM)
    rows_left = tl.minimum(q_len * group - tile * BM - part * ROWS, ROWS)
    for r in range(rows_left):
        row = part * ROWS + r
        m = -3.4028234663852886e38
        l = 0.0
        acc = tl.zeros([V_HEAD_DIM], tl.float32)
        # A row's splits in their order, whatever else there is: the same bits in every batch.
        for start in range(0, num_splits, SPLITS):
            inside = start + splits < num_splits
            at = ((item + start + splits).to(tl.int64) * kv_heads + kv_h) * BM + row
            m_each = tl.load(m_ptr + at, mask=inside, other=-3.4028234663852886e38)
            l_each = tl.load(l_ptr + at, mask=inside, other=0.0)
            acc_each = tl.load(acc_ptr + at[:, None] * V_HEAD_DIM + cols[None, :], mask=inside[:, None], other=0.0)
            m_new = tl.maximum(m, tl.max(m_each, 0))
            alpha = exp_of(m - m_new, NATURAL)
            weights = exp_of(m_each - m_new, NATURAL)
            l = l * alpha + tl.sum(l_each * weights, 0)
            acc = acc * alpha + tl.sum(acc_each * weights[:, None], 0)
            m = m_new
        i = (tile * BM + row) // group
        h = kv_h * group + (tile * BM + row) % group
        shift = 0.0
        if shift_ptr is not None:
            shift = tl.load(shift_ptr + (item.to(tl.int64) * kv_heads + kv_h) * BM + row)
        sink = None
        if sinks_ptr is not None:
            sink = tl.load(sinks_ptr + h)
        factor, lse, residue = finished(m, l, shift, sink, NATURAL)
        out_row = out_at + h.to(tl.int64) * stride_oh + i.to(tl.int64) * stride_om
        lse_row = lse_at + h.to(tl.int64) * stride_lh + i.to(tl.int64) * stride_lm
        tl.store(out_ptr + out_row + cols, (acc * factor).to(out_ptr.dtype.element_ty), mask=cols < v_head_dim)
        tl.store(lse_ptr + lse_row, lse)
        if max_ptr is not None:
            tl.store(max_ptr + lse_row, largest_logit(m, l, shift, NATURAL))
        if residue_ptr is not None:
            tl.store(residue_ptr + lse_row, residue)
