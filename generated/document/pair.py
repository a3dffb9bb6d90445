"""document: what several kernels compute of a pair of query and key: _announce, _announced, _visible,
_visible_by_key_on_hopper.

Generated from variants/document.yaml by

    flashgen build variants/document.yaml

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
def _visible(q, k, doc_b_q, doc_base):
    """k <= q and doc[b, q] == doc[b, k]."""
    return (k <= q) & (doc_b_q == tl.load(doc_base + k))


@triton.jit
def _visible_by_key_on_hopper(doc_b_k, doc_b_q):
    """doc[b, q] == doc[b, k]."""
    return doc_b_q == doc_b_k
