"""The work tiles of the kernels for Hopper: which tile of which sequence and head comes under which index.

A work tile is a tuple. The first of its numbers is its index, from which all else follows: for dense sequences by a few
divisions, so that it has no other; for packed ones by a search, whose answer are seven more:

    of queries: sequence, head, number of the tile, begin and length of the sequence, begin and length of its keys;
    of keys: sequence, head of K and V, first key, begin and length of the sequence, begin and length of its queries.

Whoever has found a tile hands it on so, see scheduler.py. Under an index without a tile there is a row, or a key, that
is none, of a sequence that is none: what reads and writes by it finds nothing.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from flashgen.runtime.device.packed import sequence_or_rest, sequence_range, slot_tile
from flashgen.runtime.device.sm90.kv_tiles import kv_tile
from flashgen.runtime.device.sm90.scheduler import request_tile


@gluon.jit
def count_tiles(cu_seqlens_ptr, num_seqs, total, length, batch, heads, BLOCK: gl.constexpr):
    """How many tiles of queries there are; of packed sequences, how many slots for them: see owned_tile."""
    if cu_seqlens_ptr is None:
        return gl.cdiv(length, BLOCK) * batch * heads
    else:
        return (total // BLOCK + num_seqs + 1) * heads


@gluon.jit
def count_key_tiles(order_ptr, num_seqs, kv_len, batch, kv_heads, BN: gl.constexpr):
    """How many tiles of keys there are."""
    if order_ptr is None:
        return gl.cdiv(kv_len, BN) * batch * kv_heads
    else:
        return gl.load(order_ptr + 2 * (num_seqs + 1)) * kv_heads


@gluon.jit
def _heads_together(longest, heads):
    """How many heads are taken together, in groups of like size: as many as have 32768 rows of the longest sequence.

    Of two tensors, 128 columns and 16 bits that is a third of an H100's L2 cache.
    """
    most = gl.maximum(32768 // gl.maximum(longest, 1), 1)
    return gl.cdiv(heads, gl.cdiv(heads, most))


@gluon.jit
def _head_and_place(index, num_places, group, heads):
    """Which head index `index` is of, and which of its tiles, or of the places for these.

    In turn the groups of so many heads, the places of each, and of these the heads: so the last tiles of all are of
    many heads, not the long ones of a single head, for which all others would wait. From the last on all are the last.
    """
    num_places = gl.maximum(num_places, 1)
    index = gl.minimum(index, num_places * heads - 1)
    first = index // (num_places * group) * group
    together = gl.minimum(group, heads - first)
    in_group = index - first * num_places
    return first + in_group % together, in_group // together


@gluon.jit
def _packed_queries(sequences, index, q_len, kv_len, heads, BM: gl.constexpr):
    """The work tile under an index of packed sequences, the longest of a sequence first, and whether there is one.

    What lies behind the last sequence is one more; see owned_tile for the slots of the others.
    """
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, _ = sequences
    h, slot = _head_and_place(index, total_q // BM + num_seqs + 1, _heads_together(q_len, heads), heads)
    b, tile, begin, length = slot_tile(cu_seqlens_q_ptr, num_seqs, total_q, q_len, slot, BM)
    exists = tile < gl.cdiv(length, BM)
    tile = gl.where(exists, gl.cdiv(length, BM) - 1 - tile, 1)
    b = gl.where(exists, b, num_seqs)
    b, begin_k, num_keys = _other_side(cu_seqlens_k_ptr, b, num_seqs, total_k, kv_len)
    begin, length = gl.minimum(begin, total_q - 1), gl.where(exists, length, 1)
    return (index, b, h, tile, begin, length, begin_k, num_keys), exists


@gluon.jit
def _other_side(cu_seqlens_ptr, b, num_seqs, total, longest):
    """Of packed sequence b: which it is, begin and length of its keys, or of its queries, for a tile of the others.
    What is no sequence has none, and passes for the last."""
    begin, length = sequence_range(cu_seqlens_ptr, b, num_seqs, total, longest)
    return gl.minimum(b, num_seqs - 1), begin, length


@gluon.jit
def queries_at(sequences, index, q_len, kv_len, heads, BM: gl.constexpr):
    """The work tile of queries under an index; `sequences` are cu_seqlens_q, cu_seqlens_k, num_seqs, total_q, total_k
    and what else a kernel has of them."""
    if sequences[0] is None:
        return (index,)
    else:
        return _packed_queries(sequences, index, q_len, kv_len, heads, BM)[0]


@gluon.jit
def next_queries(sequences, index, counter_ptr, q_len, kv_len, heads, BM: gl.constexpr):
    """The same; where packed sequences have no tile under it, under the next index that has one or is behind the last.

    A program takes indices as they come from the counter, or where that is None in turn.
    """
    if sequences[0] is None:
        return (index,)
    else:
        num_slots = count_tiles(sequences[0], sequences[2], sequences[3], q_len, 1, heads, BM)
        work_tile, exists = _packed_queries(sequences, index, q_len, kv_len, heads, BM)
        while (index < num_slots) & (exists == 0):
            if counter_ptr is None:
                index += gl.num_programs(0)
            else:
                index = gl.num_programs(0) + gl.sum(request_tile(counter_ptr), 0)
            work_tile, exists = _packed_queries(sequences, index, q_len, kv_len, heads, BM)
        return work_tile


@gluon.jit
def query_tile(work_tile, cu_seqlens_q_ptr, q_len, batch, heads, head_group, BM: gl.constexpr):
    """Of a work tile of queries: sequence and head (b, h), its number, begin and length of the sequence.

    Dense: the heads are taken in groups of head_group, whose K and V stay in the L2 cache, the longest tiles of a group
    first; without groups the tiles are taken in turn.
    """
    if cu_seqlens_q_ptr is not None:
        return work_tile[1], work_tile[2], work_tile[3], work_tile[4], work_tile[5]
    else:
        # What comes after the last tile is asked for, but not done.
        index = gl.minimum(work_tile[0], count_tiles(cu_seqlens_q_ptr, 0, 0, q_len, batch, heads, BM) - 1)
        num_q_tiles = gl.cdiv(q_len, BM)
        if head_group is None:
            head = index // num_q_tiles
            tile = index % num_q_tiles
        else:
            first_head = index // (num_q_tiles * head_group) * head_group
            group = gl.minimum(head_group, batch * heads - first_head)
            in_group = index - first_head * num_q_tiles
            head = first_head + in_group % group
            tile = num_q_tiles - 1 - in_group // group
        b = head // heads
        return b, head % heads, tile, b, q_len


@gluon.jit
def _rank(tile, first_tiles_ptr, count):
    """Of sequences in an order the one that has a tile: the last whose first is not behind it."""
    rank = 0
    last = count - 1
    while rank < last:
        middle = (rank + last + 1) // 2
        before = gl.load(first_tiles_ptr + middle) <= tile
        rank = gl.where(before, middle, rank)
        last = gl.where(before, last, middle - 1)
    return rank


@gluon.jit
def keys_at(sequences, index, q_len, kv_len, kv_heads, head_group, BN: gl.constexpr):
    """The work tile of keys under an index; packed the longest sequences of head_group heads first, as order_sequences
    has written it, which is the last of `sequences`."""
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, num_seqs, total_q, total_k, order_ptr = sequences
    if order_ptr is None:
        return (index,)
    else:
        count = num_seqs + 1
        first_tiles_ptr = order_ptr + count
        num_tiles = gl.load(first_tiles_ptr + count)
        kv_h, tile = _head_and_place(index, num_tiles, head_group, kv_heads)
        rank = _rank(tile, first_tiles_ptr, count)
        b = gl.load(order_ptr + rank)
        begin, length = sequence_or_rest(cu_seqlens_k_ptr, b, num_seqs, total_k, kv_len)
        exists = index < num_tiles * kv_heads
        tile = gl.where(exists, tile - gl.load(first_tiles_ptr + rank), 1)
        b, length = gl.where(exists, b, num_seqs), gl.where(exists, length, 1)
        b, begin_q, num_queries = _other_side(cu_seqlens_q_ptr, b, num_seqs, total_q, q_len)
        return index, b, kv_h, tile * BN, begin, length, begin_q, num_queries


@gluon.jit
def key_tile(work_tile, order_ptr, kv_len, batch, kv_heads, head_group, BN: gl.constexpr):
    """Of a work tile of keys: sequence and head of K and V, its first key, begin and length of the sequence.

    Dense: see kv_place.
    """
    if order_ptr is not None:
        return work_tile[1], work_tile[2], work_tile[3], work_tile[4], work_tile[5]
    else:
        b, kv_h, col0 = kv_tile(work_tile[0], batch, kv_heads, kv_len, head_group, BN)
        return b, kv_h, col0, b, kv_len


@gluon.jit
def other_range(work_tile, cu_seqlens_ptr, b, length):
    """Begin and length of the keys for a work tile of queries, or of the queries for one of keys, of sequence b."""
    if cu_seqlens_ptr is None:
        return b, length
    else:
        return work_tile[6], work_tile[7]
