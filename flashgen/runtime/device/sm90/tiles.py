"""Tiles [rows, columns] in shared memory: how TMA sees them, brings them, and how products take them.

A tile lies in one part whose width is a power of two, or SPLIT in two parts, each such a power. Parts are a tuple.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from flashgen.runtime.gluon import tma_load


@gluon.constexpr_function
def far_rows():
    """How many rows packed sequences have to TMA: see sequences.py."""
    return 1 << 30


@gluon.constexpr_function
def far():
    """How long its axes in front of the heads are to TMA."""
    return 0x7FFF0000


@gluon.jit
def allocate_tiles(
    dtype: gl.constexpr, count: gl.constexpr, rows: gl.constexpr, width: gl.constexpr, PACKED: gl.constexpr = False
):
    """Shared memory for tiles of so many rows and columns, as TMA and the products want them."""
    block: gl.constexpr = [1, 1, 1, rows, width] if PACKED else [1, 1, rows, width]
    return gl.allocate_shared_memory(dtype, [count] + block, gl.NVMMASharedLayout.get_default_for(block, dtype))


@gluon.jit
def describe(ptr, shape, strides, tiles, SPLIT: gl.constexpr):
    """How TMA sees a tensor whose tiles, or both parts of them, lie in shared memory."""
    block: gl.constexpr = tiles[0].index(0).type.shape
    descs = (tma.make_tensor_descriptor(ptr, shape, strides, block, tiles[0].type.layout),)
    if SPLIT:
        rest: gl.constexpr = tiles[1].index(0).type.shape
        descs = (descs[0], tma.make_tensor_descriptor(ptr, shape, strides, rest, tiles[1].type.layout))
    return descs


@gluon.jit
def place_of(desc, b, head, row, column):
    """Where TMA finds a tile by such a descriptor: of dense sequences, or of packed ones. See sequences.py."""
    if len(desc.block_type.shape) == 4:
        return b, head, row, column
    else:
        return far_rows(), b, head, row, column


@gluon.jit
def load_tile(descs, b, head, row, tiles, i, full, SPLIT: gl.constexpr = False):
    """Bring tile i of a head, from `row` on; `full` is the barrier that waits for it."""
    if SPLIT:
        mbarrier.expect(full, descs[0].block_type.nbytes + descs[1].block_type.nbytes)
        tma_load(descs[1], place_of(descs[1], b, head, row, descs[0].block_type.shape[-1]), full, tiles[1].index(i))
    else:
        mbarrier.expect(full, descs[0].block_type.nbytes)
    tma_load(descs[0], place_of(descs[0], b, head, row, 0), full, tiles[0].index(i))


@gluon.jit
def tile_at(parts, i, SPLIT: gl.constexpr):
    """Tile i, [rows, columns], in one part or in two."""
    main = parts[0].index(i).reshape([parts[0].type.shape[-2], parts[0].type.shape[-1]])
    if SPLIT:
        return main, parts[1].index(i).reshape([parts[1].type.shape[-2], parts[1].type.shape[-1]])
    else:
        return (main,)


@gluon.jit
def rest_columns(tile, MAIN: gl.constexpr, REST: gl.constexpr, SPLIT: gl.constexpr):
    """The REST columns of a tile, those after the MAIN ones."""
    if SPLIT:
        return tile[1]
    else:
        return tile[0].slice(MAIN, REST, 1)
