"""Tiles of what is read for each pair, such as a bias [heads, q_len, kv_len], in the Hopper kernels."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def load_pairs(address):
    """The tile [64, BM] at these addresses, by key and query, as a consumer's threads hold scores.

    A thread that loaded its own pairs would load each alone, of 16 rows: 8 keys of a row lie side by side.
    """
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, address.shape[1], 16])
    return gl.convert_layout(gl.load(address), scores_layout)


@gluon.constexpr_function
def layout_of_pairs(BN):
    """How a consumer of the forward kernel loads a tile [64, BN], by query and key.

    A thread has 4 keys of a row side by side, of the 16 whose scores it shares with three others: handing them over
    takes no shared memory.
    """
    columns = [[0, 1], [0, 2], *([0, 1 << bit] for bit in range(4, BN.bit_length() - 1))]
    rows = [[1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout([*columns, [8, 0]], [[0, 8], [0, 4], *rows], [[16, 0], [32, 0]], [], [64, BN])
