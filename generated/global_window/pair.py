"""global_window: what several kernels compute of a pair of query and key: _announce, _announced, _visible,
_visible_by_key.

Generated from variants/global_window.yaml by

    flashgen build variants/global_window.yaml

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
def _visible(q, k, is_global_b_q, is_global_base):
    """abs(q - k) <= 256 or is_global[b, k] or is_global[b, q]."""
    return (tl.abs(q - k) <= 256) | tl.load(is_global_base + k) | is_global_b_q


@triton.jit
def _visible_by_key(q, k, is_global_b_k, is_global_base):
    """abs(q - k) <= 256 or is_global[b, k] or is_global[b, q]."""
    return (tl.abs(q - k) <= 256) | is_global_b_k | tl.load(is_global_base + tl.maximum(q, 0))
