"""What a schedule says of a tile in the kernels for Hopper: how many tiles of the other side it sees, and where each is.

A row of it has the numbers of those tiles: mixed ones stand at its front, full ones at its end. `counts_ptr` has how
many there are of each.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from flashgen.runtime.device.sm90.sequences import if_any


@gluon.jit
def scheduled_keys(row, counts_ptr, tiles_ptr, num_k_tiles, cu_seqlens_k_ptr, num_keys):
    """How many tiles of keys there are in a row, one at least, how many of them mixed and full, and where it begins.

    A packed sequence without keys sees nothing, whatever another has there.
    """
    num_mixed = gl.load(counts_ptr + 3 * row)
    num_full = gl.load(counts_ptr + 3 * row + 1)
    if cu_seqlens_k_ptr is not None:
        num_mixed = gl.where(num_keys > 0, num_mixed, 0)
        num_full = gl.where(num_keys > 0, num_full, 0)
    return gl.maximum(num_mixed + num_full, 1), num_mixed, num_full, tiles_ptr + row * num_k_tiles


@gluon.jit
def scheduled_key_tile(i, num_mixed, num_full, row_tiles_ptr, num_k_tiles, BN: gl.constexpr):
    """The first key of tile i, mixed tiles before full ones; an empty row gets a tile that it does not see."""
    place = gl.where(i < num_mixed, i, num_k_tiles - 1 - (i - num_mixed))
    return gl.load(row_tiles_ptr + place, mask=i < num_mixed + num_full, other=0) * BN


@gluon.jit
def scheduled_queries(row, counts_ptr, tiles_ptr, num_q_tiles, cu_seqlens_q_ptr, q_len):
    """How many tiles of queries there are in a row, how many of them mixed, and where it begins.

    A packed sequence without queries is not seen, whatever another has there.
    """
    num_mixed = gl.load(counts_ptr + 3 * row)
    num_tiles = num_mixed + gl.load(counts_ptr + 3 * row + 1)
    num_mixed = if_any(cu_seqlens_q_ptr, q_len, num_mixed, 0)
    num_tiles = if_any(cu_seqlens_q_ptr, q_len, num_tiles, 0)
    return num_tiles, num_mixed, tiles_ptr + row * num_q_tiles


@gluon.jit
def scheduled_query_tile(i, num_mixed, row_tiles_ptr, num_q_tiles, BM: gl.constexpr):
    """The first query of tile i, mixed tiles before full ones."""
    place = gl.where(i < num_mixed, i, num_q_tiles - 1 - (i - num_mixed))
    return gl.load(row_tiles_ptr + place) * BM
