"""block_sparse: what several kernels compute of a pair of query and key: _announce, _announced, _visible,
_visible_by_key.

Generated from variants/block_sparse.yaml by

    flashgen build variants/block_sparse.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


@gluon.jit
def _announce(index, turn, index_s, index_full, index_empty):
    """The producer's: tell the consumers which tile comes at this turn."""
    mbarrier.wait(index_empty.index(turn % 2), (turn // 2 & 1) ^ 1)
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    index_s.index(turn % 2).store(gl.full([1], 0, gl.int32, layout=layout) + index)
    mbarrier.arrive(index_full.index(turn % 2))


@gluon.jit
def _announced(turn, index_s, index_full, index_empty):
    """A consumer's: the tile of this turn."""
    mbarrier.wait(index_full.index(turn % 2), turn // 2 & 1)
    index = gl.sum(index_s.index(turn % 2).load(gl.BlockedLayout([1], [32], [4], [0])), 0)
    mbarrier.arrive(index_empty.index(turn % 2))
    return index


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
