"""Keys in the pages of a cache in the forward kernel for Hopper: which tiles of queries there are, where TMA finds keys.

What is dense or packed goes on to sequences.py; the first of `pages` is None there. Else `pages` are block_table [batch,
max_blocks] and its stride; items [room, 4], whose first two numbers are a sequence and a tile of its queries, and count
[2], which has their number last, as plan_splits writes them; num_blocks, and the steps of a page and of a slot. Queries
are packed then, and cu_seqlens_k_ptr has the number of keys of each sequence.

TMA sees a page as a packed sequence that ends at its last slot in use: what lies behind reads as zero. So row s of a
page of which `used` slots are in use is ROWS - used + s, and one step along the second axis leads as many elements on
as divide a slot and a page, whatever the layout of the cache:

    ROWS * (2^34 - slot) + (page * step_page + used * step_slot) * step + (ROWS - used + s) * slot
        = page * step_page * step + s * slot    (mod 2^64),    step_slot * step = slot

A tile of keys comes by PAGE_ROWS rows at a time, which lie in one page. The last lanes of a vector [32] have the places
of these; K and V have the same steps, so that a tile's places serve both. Tiles are walked from the last keys down.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from flashgen.runtime.device.packed import sequence_range
from flashgen.runtime.device.sm90.sequences import describe_sequences, tma_place
from flashgen.runtime.device.sm90.tiles import far, far_rows, load_tile
from flashgen.runtime.device.sm90.work_tiles import count_tiles, next_queries
from flashgen.runtime.gluon import tma_load


@gluon.constexpr_function
def _lanes():
    """One warp brings the keys: a place for each of its lanes."""
    return gl.BlockedLayout([1], [32], [1], [0])


@gluon.jit
def count_query_tiles(pages, cu_seqlens_q_ptr, num_seqs, total_q, q_len, batch, heads, BM: gl.constexpr):
    """As count_tiles."""
    if pages[0] is None:
        return count_tiles(cu_seqlens_q_ptr, num_seqs, total_q, q_len, batch, heads, BM)
    else:
        return gl.load(pages[3] + 1) * heads


@gluon.jit
def next_query_tile(sequences, index, counter_ptr, q_len, kv_len, heads, BM: gl.constexpr):
    """As next_queries; over pages, the last of `sequences`, in turn the heads, and the items of each."""
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, _, pages = sequences
    if pages[0] is None:
        return next_queries(sequences, index, counter_ptr, q_len, kv_len, heads, BM)
    else:
        num_items = gl.load(pages[3] + 1)
        exists = index < num_items * heads
        item = pages[2] + 4 * (index % gl.maximum(num_items, 1))
        b = gl.minimum(gl.maximum(gl.load(item, mask=exists, other=0), 0), num_seqs - 1)
        begin, length = sequence_range(cu_seqlens_q_ptr, b, num_seqs, total_q, q_len)
        # What is no tile is a row that is not there, of a sequence of one.
        exists = exists & (length > 0)
        tile = gl.where(exists, gl.load(item + 1, mask=exists, other=0), 1)
        h = gl.where(exists, index // gl.maximum(num_items, 1), 0)
        num_keys = gl.minimum(gl.maximum(gl.load(cu_seqlens_k_ptr + b), 0), kv_len)
        # Inputs along keys begin at b.
        return index, b, h, tile, begin, gl.where(exists, length, 1), b, num_keys


@gluon.jit
def describe_keys(pages, cu_seqlens_k_ptr, ptr, batch, kv_heads, kv_len, dim, strides, tiles, shape):
    """As describe_sequences; of pages [.., PAGE_ROWS, width] for each part of a tile."""
    if pages[0] is None:
        return describe_sequences(
            cu_seqlens_k_ptr, ptr, batch, kv_heads, kv_len, dim, strides, tiles, shape.SPLIT
        )  # fmt: skip
    else:
        descs = (_describe_pages(ptr, kv_heads, dim, strides, tiles[0], shape.PAGE_ROWS),)
        if shape.SPLIT:
            descs = (descs[0], _describe_pages(ptr, kv_heads, dim, strides, tiles[1], shape.PAGE_ROWS))
        return descs


@gluon.jit
def _describe_pages(ptr, kv_heads, dim, strides, tiles, PAGE_ROWS: gl.constexpr):
    step, along_heads, along_slots = strides
    back = (1 << 34) - gl.to_tensor(along_slots).to(gl.int64)
    block: gl.constexpr = [1, 1, 1, PAGE_ROWS, tiles.type.shape[-1]]
    shape = [far(), far(), kv_heads, far_rows(), dim]
    return tma.make_tensor_descriptor(ptr, shape, [back, step, along_heads, along_slots, 1], block, tiles.type.layout)


@gluon.jit
def no_keys(pages):
    """A place that is none yet, a head of it, and a row."""
    if pages[0] is None:
        return 0, 0, 0
    else:
        return gl.zeros([32], gl.int32, _lanes()), 0, gl.zeros([32], gl.int32, _lanes())


@gluon.jit
def find_tile(pages, cu_seqlens_k_ptr, begin, num_keys, start, shape):
    """As tma_place, for each of the rows that come at a time of the tile of keys from `start` on.

    Whatever stands in the table, the page is one of the cache; of rows that are not there no page is looked up.
    """
    if pages[0] is None:
        return tma_place(cu_seqlens_k_ptr, begin, num_keys, start)
    else:
        block_table_ptr, stride_table, _, _, num_blocks, step_page, step_slot = pages
        BLOCK_SIZE: gl.constexpr = shape.BLOCK_SIZE
        LOADS: gl.constexpr = shape.BN // shape.PAGE_ROWS
        # What the first lanes look up, for tiles that come after this one, waits in the L1 cache.
        keys = start + (gl.arange(0, 32, _lanes()) - (32 - LOADS)) * shape.PAGE_ROWS
        exists = (keys >= 0) & (keys < num_keys)
        row_of_table = block_table_ptr + begin.to(gl.int64) * stride_table
        page = gl.load(row_of_table + keys // BLOCK_SIZE, mask=exists, other=0)
        page = gl.minimum(gl.maximum(page, 0), num_blocks - 1)
        slot = keys % BLOCK_SIZE
        used = gl.minimum(num_keys - (keys - slot), BLOCK_SIZE)
        at = gl.where(exists, page * step_page + used * step_slot, 0)
        return at, gl.where(exists, far_rows() - used + slot, far_rows())


@gluon.jit
def bring_keys(pages, descs, b, kv_h, row, n, k_s, k_channel, v_channel, shape):
    """Bring tile n of K into its place once that is free; one that it shares with V is when V has been read."""
    slot = k_channel.slot(n)
    if shape.SPLIT:
        v_channel.acquire(slot)
    else:
        k_channel.acquire(slot)
    _load(pages, descs, b, kv_h, row, k_s, slot[0], k_channel.full.index(slot[0]), shape)


@gluon.jit
def bring_values(pages, descs, b, kv_h, row, n, v_s, k_channel, v_channel, shape):
    """Bring tile n of V into its place once that is free; one that it shares with K is when K has been read."""
    slot = v_channel.slot(n)
    if shape.SPLIT:
        mbarrier.wait(k_channel.empty.index(slot[0]), slot[1])
    else:
        v_channel.acquire(slot)
    _load(pages, descs, b, kv_h, row, v_s, slot[0], v_channel.full.index(slot[0]), shape)


@gluon.jit
def _load(pages, descs, b, kv_h, row, tiles, i, full, shape):
    """As load_tile."""
    if pages[0] is None:
        load_tile(descs, b, kv_h, row, tiles, i, full, shape.SPLIT)
    else:
        _load_pages(descs, b, kv_h, row, tiles, i, full, shape)


@gluon.jit
def _load_pages(descs, at, head, row, tiles, i, full, shape):
    """Bring tile i of a head by PAGE_ROWS rows at a time, whose places the lanes have."""
    LOADS: gl.constexpr = shape.BN // shape.PAGE_ROWS
    lanes = gl.arange(0, 32, _lanes())
    if shape.SPLIT:
        mbarrier.expect(full, LOADS * (descs[0].block_type.nbytes + descs[1].block_type.nbytes))
    else:
        mbarrier.expect(full, LOADS * descs[0].block_type.nbytes)
    for each in gl.static_range(LOADS):
        here = gl.sum(gl.where(lanes == 32 - LOADS + each, at, 0), 0)
        first = gl.sum(gl.where(lanes == 32 - LOADS + each, row, 0), 0)
        for part in gl.static_range(2 if shape.SPLIT else 1):
            rows = tiles[part].index(i).slice(each * shape.PAGE_ROWS, shape.PAGE_ROWS, 3)
            column = part * descs[0].block_type.shape[-1]
            tma_load(descs[part], [far_rows(), here, head, first, column], full, rows)
