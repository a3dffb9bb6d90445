"""The kernel that brings dQ, as backward_kv_sm90 has added it up, into its order."""

from __future__ import annotations

import triton
import triton.language as tl

from flashgen.runtime.device.packed import delta_tile, output_rows


@triton.jit(do_not_specialize=["heads", "q_len", "num_rows", "head_dim", "num_seqs", "total_q"])
def collect_dq(
    sums_ptr, dq_ptr, scale, heads, q_len, num_rows, head_dim, cu_seqlens_q_ptr, num_seqs, total_q,
    HEAD_DIM: tl.constexpr,
):  # fmt: skip
    # Grid: one program for each 64 x 64 tile of the sums of each head of each batch element: dq = scale * sums, from
    # the order of `sm90.fragments.add_dq` to that of rows. Packed sequences are where cu_seqlens are not None.
    tile = tl.program_id(0).to(tl.int64)
    dims = tile % (HEAD_DIM // 64) * 64 + tl.arange(0, 64)
    first = tile // (HEAD_DIM // 64) * 64
    head = first // num_rows
    _, _, row0, begin, length = delta_tile(
        cu_seqlens_q_ptr, num_seqs, total_q, q_len, heads, head, first % num_rows // 64, 64
    )
    if cu_seqlens_q_ptr is not None and row0 >= length:
        return
    rows = row0 + tl.arange(0, 64)
    sums = tl.load(sums_ptr + tile * 4096 + tl.arange(0, 4096))
    # Dimensions: eight columns, warp, lane // 4, lane % 4, one of two rows, one of two columns.
    dq = sums.reshape(8, 4, 8, 4, 2, 2).permute(1, 4, 2, 0, 3, 5).reshape(64, 64) * scale
    tl.store(
        dq_ptr + output_rows(cu_seqlens_q_ptr, rows, head, begin, length, heads)[:, None] * head_dim + dims[None, :],
        dq.to(dq_ptr.dtype.element_ty),
        mask=(rows < length)[:, None] & (dims < head_dim)[None, :],
    )
