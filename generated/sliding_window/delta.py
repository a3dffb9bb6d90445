"""sliding_window: what the backward kernels need of each row.

Generated from variants/sliding_window.yaml by

    flashgen build variants/sliding_window.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl

from flashgen.runtime.device.packed import delta_tile, first_row, rows_apart


@triton.jit(do_not_specialize=["heads", "q_len", "num_rows", "v_head_dim", "num_seqs", "total_q"])
def _delta(
    out_ptr, d_out_ptr, lse_ptr, d_lse_ptr, row_lse_ptr, delta_ptr, dq_sums_ptr,
    stride_outb, stride_outh, stride_outm, stride_ob, stride_oh, stride_om, stride_lb, stride_lh, stride_lm,
    heads, q_len, num_rows, v_head_dim,
    cu_seqlens_q_ptr, num_seqs, total_q,
    BM: tl.constexpr, V_HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
):
    # Grid: one program for each tile of BM rows of each head of each batch element. Writes for each row
    # delta = sum(d_out * out) - d_lse (FlashAttention-2, algorithm 2) and its log-sum-exp in units of log2: infinity
    # for a row that sees no key, so that all its p are 0, and for the rows from q_len to num_rows, which fill tiles.
    # Packed sequences are where cu_seqlens are not None: num_rows then has room behind each, see delta_row.
    num_tiles = tl.cdiv(num_rows, BM)
    head = tl.program_id(0) // num_tiles
    place = tl.program_id(0) % num_tiles
    b, h, row0, begin_q, q_len = delta_tile(cu_seqlens_q_ptr, num_seqs, total_q, q_len, heads, head, place, BM)
    first = begin_q.to(tl.int64)
    h = h.to(tl.int64)
    rows = row0 + tl.arange(0, BM)
    dims = tl.arange(0, V_HEAD_DIM)
    in_range = rows < q_len
    inside = in_range[:, None] & (dims < v_head_dim)[None, :]
    at = first_row(cu_seqlens_q_ptr, head, begin_q, q_len, total_q) + rows
    out_rows = out_ptr + first * stride_outb + h * stride_outh + rows.to(tl.int64) * stride_outm
    out = tl.load(out_rows[:, None] + dims[None, :], mask=inside, other=0.0)
    d_out_rows = d_out_ptr + first * stride_ob + h * stride_oh + rows.to(tl.int64) * stride_om
    d_out = tl.load(d_out_rows[:, None] + dims[None, :], mask=inside, other=0.0)
    delta = tl.sum(out.to(tl.float32) * d_out.to(tl.float32), 1)
    if d_lse_ptr is not None:
        d_lse_rows = d_lse_ptr + first * stride_lb + h * stride_lh + rows.to(tl.int64) * stride_lm
        delta -= tl.load(d_lse_rows, mask=in_range, other=0.0)
    lse = tl.load(lse_ptr + at, mask=in_range, other=-float("inf"))
    lse = tl.where(lse == -float("inf"), float("inf"), lse * 1.4426950408889634)
    places = place * BM + tl.arange(0, BM)
    at = head.to(tl.int64) * num_rows + places
    tl.store(row_lse_ptr + at, lse, mask=places < num_rows)
    tl.store(delta_ptr + at, delta, mask=places < num_rows)
    if dq_sums_ptr is not None:
        # Zeros where parts of dQ are added up, WIDTH for each row.
        elements = at[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
        cleared = places < num_rows
        if cu_seqlens_q_ptr is not None:
            # Nothing is added where a packed sequence has room for rows but none of them.
            cleared &= row0 // rows_apart() * rows_apart() < q_len
        tl.store(dq_sums_ptr + elements, tl.zeros([BM, WIDTH], tl.float32), mask=cleared[:, None])
