"""Tiles of what is read for each pair, such as a bias [heads, q_len, kv_len], in the Hopper kernels for dK and dV."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def load_pairs(address):
    """The tile [64, BM] at these addresses, by key and query, as a consumer's threads hold scores.

    A thread that loaded its own pairs would load each alone, of 16 rows: 8 keys of a row lie side by side.
    """
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, address.shape[1], 16])
    return gl.convert_layout(gl.load(address), scores_layout)
