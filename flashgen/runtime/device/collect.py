"""The kernel that brings dQ, as backward_kv_sm90 has added it up, into its order."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["q_len", "num_rows", "head_dim"])
def collect_dq(sums_ptr, dq_ptr, scale, q_len, num_rows, head_dim, HEAD_DIM: tl.constexpr):
    # Grid: one program for each 64 x 64 tile of the sums of each head of each batch element: dq = scale * sums, from
    # the order of `sm90.fragments.add_dq` to that of rows.
    tile = tl.program_id(0).to(tl.int64)
    dims = tile % (HEAD_DIM // 64) * 64 + tl.arange(0, 64)
    first = tile // (HEAD_DIM // 64) * 64
    head = first // num_rows
    rows = first % num_rows + tl.arange(0, 64)
    sums = tl.load(sums_ptr + tile * 4096 + tl.arange(0, 4096))
    # Dimensions: eight columns, warp, lane // 4, lane % 4, one of two rows, one of two columns.
    dq = sums.reshape(8, 4, 8, 4, 2, 2).permute(1, 4, 2, 0, 3, 5).reshape(64, 64) * scale
    tl.store(
        dq_ptr + (head * q_len + rows)[:, None] * head_dim + dims[None, :],
        dq.to(dq_ptr.dtype.element_ty),
        mask=(rows < q_len)[:, None] & (dims < head_dim)[None, :],
    )
