"""Tiles of what is read for each pair in rows, such as a bias [heads, q_len, kv_len], in the Hopper kernels."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.constexpr_function
def layout_of_pairs(BN):
    """How a consumer of the forward kernel loads a tile [64, BN], by query and key.

    A thread has 4 keys of a row side by side, of the 16 whose scores it shares with three others: handing them over
    takes no shared memory.
    """
    columns = [[0, 1], [0, 2], *([0, 1 << bit] for bit in range(4, BN.bit_length() - 1))]
    rows = [[1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout([*columns, [8, 0]], [[0, 8], [0, 4], *rows], [[16, 0], [32, 0]], [], [64, BN])


@gluon.jit
def load_pair_rows(rows, keys, start, kv_len):
    """What rows at these addresses have at `keys`, which begin with `start`; those beyond the last are taken as the last.

    Only where all of them exist do several of a row come at once.
    """
    if start + keys.numel <= kv_len:
        tile = gl.load(rows + keys)
    else:
        tile = gl.load(rows + gl.minimum(keys, kv_len - 1))
    return tile
