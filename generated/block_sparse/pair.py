"""block_sparse: what several kernels compute of a pair of query and key: _visible, _visible_by_key, _visible_of_rows.

Generated from variants/block_sparse.yaml by

    flashgen build variants/block_sparse.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl


@triton.jit
def _visible(k, block_mask_base, block_mask_row, c):
    """block_mask[b, h, (q - (kv_len - q_len)) // 128, k // 128]."""
    return tl.load(block_mask_base + block_mask_row + tl.minimum(k // 128, c))


@triton.jit
def _visible_by_key(q, block_mask_base, block_mask_col, c, c_2, stride_block_mask_2):
    """block_mask[b, h, (q - (kv_len - q_len)) // 128, k // 128]."""
    return tl.load(
        block_mask_base + tl.maximum(tl.minimum(q - c >> 7, c_2), 0).to(tl.int64) * stride_block_mask_2 + block_mask_col
    )


@triton.jit
def _visible_of_rows(k, block_mask_base, block_mask_row, block_mask_row_2, c):
    """block_mask[b, h, (q - (kv_len - q_len)) // 128, k // 128]."""
    return tl.load(block_mask_base + block_mask_row + block_mask_row_2 + tl.minimum(k // 128, c))
