"""The kernel that splits the keys of a batch of sequences evenly among programs, whatever their lengths."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def query_range(cu_seqlens_q_ptr, b, batch, total_q, max_q):
    """The first query of sequence b and how many it has: one where there are no cu_seqlens_q.

    Whatever stands there, the range lies within the total_q queries, and has at most max_q; sequences from `batch` on
    have none.
    """
    exists = b < batch
    if cu_seqlens_q_ptr is None:
        return b, tl.where(exists, 1, 0)
    else:
        first = tl.minimum(tl.maximum(tl.load(cu_seqlens_q_ptr + b, mask=exists, other=0), 0), total_q)
        # Not below 0 either: the difference of two integers of 32 bits may have more.
        stop = tl.minimum(tl.maximum(tl.load(cu_seqlens_q_ptr + b + 1, mask=exists, other=0), 0), total_q)
        return first, tl.minimum(tl.maximum(stop - first, 0), max_q)


@triton.jit
def _tiles(
    cu_seqlens_q_ptr, seq_lens_ptr, b, batch, total_q, max_q, group, max_keys, span,
    BM: tl.constexpr, BN: tl.constexpr, MOST_Q: tl.constexpr,
):  # fmt: skip
    """Of sequences b: tiles of BM rows, and how many tiles of BN keys each of them reads at most.

    Sequences of more than MOST_Q queries have none: they are another kernel's. None: there is no other.
    """
    _, q_len = query_range(cu_seqlens_q_ptr, b, batch, total_q, max_q)
    if MOST_Q is not None:
        q_len = tl.where(q_len <= MOST_Q, q_len, 0)
    keys = tl.minimum(tl.maximum(tl.load(seq_lens_ptr + b, mask=b < batch, other=0), 0), max_keys)
    # A row sees at most `span` keys, and the others of its tile as many more as they are apart.
    keys = tl.minimum(keys, span + tl.minimum(BM // group, q_len))
    return tl.cdiv(q_len * group, BM), tl.cdiv(keys, BN)


@triton.jit
def _items_before(
    end, chunk, cu_seqlens_q_ptr, seq_lens_ptr, batch, total_q, max_q, group, max_keys, span,
    BM: tl.constexpr, BN: tl.constexpr, BLOCK: tl.constexpr, MOST_Q: tl.constexpr,
):  # fmt: skip
    """How many items the sequences before `end` have together, of at most so many tiles of keys, for each chunk [C]."""
    count = chunk * 0
    for start in range(0, end, BLOCK):
        b = start + tl.arange(0, BLOCK)
        rows, keys = _tiles(
            cu_seqlens_q_ptr, seq_lens_ptr, b, batch, total_q, max_q, group, max_keys, span, BM, BN, MOST_Q
        )
        items = rows[:, None] * tl.maximum(tl.cdiv(keys[:, None], chunk[None, :]), 1)
        count += tl.sum(tl.where((b < end)[:, None], items, 0), 0)
    return count


@triton.jit
def _even_chunk(
    cu_seqlens_q_ptr, seq_lens_ptr, batch, total_q, max_q, group, max_keys, span, room, at_once,
    BM: tl.constexpr, BN: tl.constexpr, BLOCK: tl.constexpr, MOST_Q: tl.constexpr,
):  # fmt: skip
    """The tiles of keys of a split with which a GPU that runs `at_once` items at a time is done soonest."""
    one = tl.full([1], 1, tl.int32)
    work = tl.sum(_items_before(
        batch, one, cu_seqlens_q_ptr, seq_lens_ptr, batch, total_q, max_q, group, max_keys, span, BM, BN, BLOCK, MOST_Q
    ))  # fmt: skip
    # Those that would share the work out in 1, 2, 3 or 4 rounds, and up to half as large again, for sequences whose
    # tiles do not divide so.
    each = tl.arange(0, 64)
    chunk = tl.maximum(tl.cdiv(work, (each % 4 + 1) * at_once), 1)
    chunk += tl.cdiv(chunk * (each // 4), 32)
    count = _items_before(
        batch, chunk, cu_seqlens_q_ptr, seq_lens_ptr, batch, total_q, max_q, group, max_keys, span, BM, BN, BLOCK,
        MOST_Q,
    )  # fmt: skip
    # A split takes as long as its tiles, and one more to begin and end with. Rounds end together, or where splits are
    # of many lengths the last one ends at most its own time after all are shared out (Graham 1969).
    rounds = tl.cdiv(count, at_once) * (chunk + 1)
    shared_out = tl.cdiv(work + count, at_once) + chunk + 1
    time = tl.where(count <= room, tl.minimum(rounds, shared_out), 2147483647)
    best = tl.sum(tl.where(each == tl.argmin(time, 0), chunk, 0))
    return tl.where(tl.min(time, 0) < 2147483647, best, tl.maximum(tl.cdiv(max_keys, BN), 1))


@triton.jit
def _filled_before(
    end, cu_seqlens_q_ptr, batch, total_q, max_q, BLOCK: tl.constexpr, MOST_Q: tl.constexpr, Q_BM: tl.constexpr
):  # fmt: skip
    """How many tiles of Q_BM queries the sequences before `end` have together that have more than MOST_Q of these."""
    count = 0
    for start in range(0, end, BLOCK):
        b = start + tl.arange(0, BLOCK)
        _, q_len = query_range(cu_seqlens_q_ptr, b, batch, total_q, max_q)
        count += tl.sum(tl.where((b < end) & (q_len > MOST_Q), tl.cdiv(q_len, Q_BM), 0), 0)
    return count


@triton.jit
def _plan_filled(
    items_ptr, count_ptr, cu_seqlens_q_ptr, batch, total_q, max_q, room,
    BLOCK: tl.constexpr, MOST_Q: tl.constexpr, Q_BM: tl.constexpr,
):  # fmt: skip
    """The items of a kernel that keeps a tile of Q_BM queries of a head in a program: (b, tile, 0, 0)."""
    b = tl.program_id(0)
    first = _filled_before(b, cu_seqlens_q_ptr, batch, total_q, max_q, BLOCK, MOST_Q, Q_BM)
    _, q_len = query_range(cu_seqlens_q_ptr, b, batch, total_q, max_q)
    tiles = tl.where(q_len > MOST_Q, tl.cdiv(q_len, Q_BM), 0)
    for start in range(0, tiles, BLOCK):
        each = start + tl.arange(0, BLOCK)
        inside = (each < tiles) & (first + each < room)
        to = items_ptr + (first + each) * 4
        tl.store(to, b + each * 0, mask=inside)
        # Where a mask lets them see more keys the last tiles take longest: they come first.
        tl.store(to + 1, tiles - 1 - each, mask=inside)
        tl.store(to + 2, each * 0, mask=inside)
        tl.store(to + 3, each * 0, mask=inside)
    if b == batch - 1:
        tl.store(count_ptr, tl.minimum(first + tiles, room))


@triton.jit(do_not_specialize=[
    "batch", "total_q", "max_q", "group", "max_keys", "span", "room", "at_once", "chunk", "q_room",
])  # fmt: skip
def plan_splits(
    items_ptr, count_ptr, seq_lens_ptr, cu_seqlens_q_ptr,
    batch, total_q, max_q, group, max_keys, span, room, at_once, chunk, q_room,
    BM: tl.constexpr, BN: tl.constexpr, BLOCK: tl.constexpr, MOST_Q: tl.constexpr = None, Q_BM: tl.constexpr = None,
):  # fmt: skip
    # Grid: one program for each sequence b, which writes its items. An item is one split of the keys of one tile of
    # query rows: (b, tile, split, number of splits); without keys there are 0 splits, and one item. A split has at most
    # `chunk` tiles of keys; where that is 0, as many as suit a GPU that runs `at_once` items at a time. Sequences of more
    # than MOST_Q queries have the q_room items behind these, a tile of Q_BM queries each, and a count of their own.
    b = tl.program_id(0)
    if chunk == 0:
        chunk = _even_chunk(
            cu_seqlens_q_ptr, seq_lens_ptr, batch, total_q, max_q, group, max_keys, span, room, at_once,
            BM, BN, BLOCK, MOST_Q,
        )  # fmt: skip
    each_chunk = tl.full([1], 0, tl.int32) + chunk
    first = tl.sum(_items_before(
        b, each_chunk, cu_seqlens_q_ptr, seq_lens_ptr, batch, total_q, max_q, group, max_keys, span,
        BM, BN, BLOCK, MOST_Q,
    ))  # fmt: skip
    rows, keys = _tiles(cu_seqlens_q_ptr, seq_lens_ptr, b, batch, total_q, max_q, group, max_keys, span, BM, BN, MOST_Q)
    splits = tl.cdiv(keys, chunk)
    of_tile = tl.maximum(splits, 1)
    for start in range(0, rows * of_tile, BLOCK):
        each = start + tl.arange(0, BLOCK)
        inside = (each < rows * of_tile) & (first + each < room)
        to = items_ptr + (first + each) * 4
        tl.store(to, b + each * 0, mask=inside)
        tl.store(to + 1, each // of_tile, mask=inside)
        tl.store(to + 2, each % of_tile, mask=inside)
        tl.store(to + 3, splits + each * 0, mask=inside)
    if b == batch - 1:
        tl.store(count_ptr, tl.minimum(first + rows * of_tile, room))
    if MOST_Q is not None:
        to = items_ptr + room.to(tl.int64) * 4
        _plan_filled(to, count_ptr + 1, cu_seqlens_q_ptr, batch, total_q, max_q, q_room, BLOCK, MOST_Q, Q_BM)
