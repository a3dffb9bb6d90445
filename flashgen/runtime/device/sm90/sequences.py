"""Dense and packed sequences in the kernels for Hopper: which tiles there are, and where TMA finds their rows.

TMA sees dense sequences as [batch, heads, length, dim]. Of packed ones no tile may read or write what lies behind the
end of its sequence, where the next one begins. So TMA sees these as [far(), far(), heads, ROWS, dim], ROWS =
far_rows() = 2^30 of them, of which a sequence's last one is the last: row r of a sequence of `length` that ends in
front of token e is ROWS - length + r. What comes after lies beyond the axis: it reads as zero, and is not written. A
step along that axis and along the second leads one token on, one along the first 2^34 elements less a token. Addresses
have 64 bits, so that 2^30 steps along the first lead 2^30 tokens back:

    ROWS * (2^34 - token) + e * token + (ROWS - length + r) * token = (e - length + r) * token    (mod 2^64)

as `triton.tools.ragged_tma` has it. The tensor's own begin is the descriptor's.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from flashgen.runtime.device.packed import first_row, roomy_row, sequence_or_rest, sequence_range, slot_tile
from flashgen.runtime.device.sm90.kv_tiles import kv_tile
from flashgen.runtime.device.sm90.scheduler import request_tile
from flashgen.runtime.device.sm90.tiles import describe, far, far_rows


@gluon.jit
def describe_sequences(cu_seqlens_ptr, ptr, batch, heads, length, dim, strides, tiles, SPLIT: gl.constexpr):
    """How TMA sees sequences whose tiles, or both parts of them, lie in shared memory."""
    along_batch, along_heads, along_rows = strides
    if cu_seqlens_ptr is None:
        return describe(ptr, [batch, heads, length, dim], [along_batch, along_heads, along_rows, 1], tiles, SPLIT)
    else:
        back = (1 << 34) - gl.to_tensor(along_rows).to(gl.int64)
        shape = [far(), far(), heads, far_rows(), dim]
        return describe(ptr, shape, [back, along_rows, along_heads, along_rows, 1], tiles, SPLIT)


@gluon.jit
def output_strides(cu_seqlens_ptr, length, heads, dim):
    """The strides of an output [batch, heads, length, dim], or packed [total, heads, dim]."""
    if cu_seqlens_ptr is None:
        return length.to(gl.int64) * dim * heads, length.to(gl.int64) * dim, dim
    else:
        return heads * dim, dim, heads * dim


@gluon.jit
def tma_place(cu_seqlens_ptr, begin, length, row):
    """Where TMA finds a row of a sequence: along the axis before the heads, and along the one after them.

    A packed sequence's row from `length` on is none, whatever its number: it stands behind the first token.
    """
    if cu_seqlens_ptr is None:
        return begin, row
    else:
        exists = row < length
        return gl.where(exists, begin + length, 0), gl.where(exists, far_rows() - length + row, far_rows())


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
def _head_and_place(index, num_places, longest, heads):
    """Which head index `index` is of, and which of its tiles, or of the places for these.

    In turn the groups of heads, the places of each, and of these the heads: so the last tiles of all are of many heads,
    not the long ones of a single head, for which all others would wait. From the last on all are the last.
    """
    num_places = gl.maximum(num_places, 1)
    index = gl.minimum(index, num_places * heads - 1)
    group = _heads_together(longest, heads)
    first = index // (num_places * group) * group
    together = gl.minimum(group, heads - first)
    in_group = index - first * num_places
    return first + in_group % together, in_group // together


@gluon.jit
def _slot(index, cu_seqlens_ptr, num_seqs, total, longest, heads, BLOCK: gl.constexpr):
    """What lies in slot `index` of packed sequences: sequence, head, number of the tile, begin and length of the
    sequence, and whether there is such a tile. What lies behind the last sequence is one more."""
    h, slot = _head_and_place(index, total // BLOCK + num_seqs + 1, longest, heads)
    b, tile, begin, length = slot_tile(cu_seqlens_ptr, num_seqs, total, longest, slot, BLOCK)
    return b, h, tile, begin, length, tile < gl.cdiv(length, BLOCK)


@gluon.jit
def next_tile(index, counter_ptr, cu_seqlens_ptr, num_seqs, total, longest, heads, BLOCK: gl.constexpr):
    """`index`; of packed sequences, whose slots may have no tile, the next one that has or is behind the last.

    A program takes them as they come from the counter, or where that is None in turn.
    """
    if cu_seqlens_ptr is not None:
        num_slots = count_tiles(cu_seqlens_ptr, num_seqs, total, longest, 1, heads, BLOCK)
        exists = _slot(index, cu_seqlens_ptr, num_seqs, total, longest, heads, BLOCK)[5]
        while (index < num_slots) & (exists == 0):
            if counter_ptr is None:
                index += gl.num_programs(0)
            else:
                index = gl.num_programs(0) + gl.sum(request_tile(counter_ptr), 0)
            exists = _slot(index, cu_seqlens_ptr, num_seqs, total, longest, heads, BLOCK)[5]
    return index


@gluon.jit
def query_tile(index, cu_seqlens_q_ptr, num_seqs, total_q, q_len, batch, heads, head_group, BM: gl.constexpr):
    """Of tile `index` of queries: sequence and head (b, h), its number, begin and length of the sequence.

    Dense: the heads are taken in groups of head_group, whose K and V stay in the L2 cache, the longest tiles of a group
    first; without groups the tiles are taken in turn. Packed: see _slot, the longest tiles of a sequence first; a slot
    without a tile has a row that is not there, of a sequence that is none.
    """
    # What comes after the last tile is asked for, but not done.
    index = gl.minimum(index, count_tiles(cu_seqlens_q_ptr, num_seqs, total_q, q_len, batch, heads, BM) - 1)
    if cu_seqlens_q_ptr is not None:
        b, h, tile, begin, length, exists = _slot(index, cu_seqlens_q_ptr, num_seqs, total_q, q_len, heads, BM)
        tile = gl.where(exists, gl.cdiv(length, BM) - 1 - tile, 1)
        return gl.where(exists, b, num_seqs), h, tile, gl.minimum(begin, total_q - 1), gl.where(exists, length, 1)
    else:
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
def key_tile(
    index, cu_seqlens_k_ptr, num_seqs, total_k, order_ptr, kv_len, batch, kv_heads, head_group, BN: gl.constexpr
):  # fmt: skip
    """Of tile `index` of keys: sequence and head of K and V, its first key, begin and length of the sequence.

    Dense: see kv_place. Packed: the longest sequences of a group of heads first, as order_sequences has written it; from
    the last tile on there is a key that is none, of a sequence that is none.
    """
    if order_ptr is not None:
        count = num_seqs + 1
        first_tiles_ptr = order_ptr + count
        num_tiles = gl.load(first_tiles_ptr + count)
        kv_h, tile = _head_and_place(index, num_tiles, kv_len, kv_heads)
        rank = _rank(tile, first_tiles_ptr, count)
        b = gl.load(order_ptr + rank)
        begin, length = sequence_or_rest(cu_seqlens_k_ptr, b, num_seqs, total_k, kv_len)
        exists = index < num_tiles * kv_heads
        tile = gl.where(exists, tile - gl.load(first_tiles_ptr + rank), 1)
        return gl.where(exists, b, num_seqs), kv_h, tile * BN, begin, gl.where(exists, length, 1)
    else:
        b, kv_h, col0 = kv_tile(index, batch, kv_heads, kv_len, head_group, BN)
        return b, kv_h, col0, b, kv_len


@gluon.jit
def other_side(cu_seqlens_ptr, b, num_seqs, total, longest):
    """Of sequence b: which it is, begin and length of its keys, or of its queries, for a tile of the others. What is
    no sequence has none, and passes for the last."""
    begin, length = sequence_range(cu_seqlens_ptr, b, num_seqs, total, longest)
    if cu_seqlens_ptr is None:
        return b, begin, length
    else:
        return gl.minimum(b, num_seqs - 1), begin, length


@gluon.jit
def if_any(cu_seqlens_ptr, others, length, otherwise):
    """The length of a tile's sequence, or what a packed one has in its place that has no `others` to meet."""
    if cu_seqlens_ptr is None:
        return length
    else:
        return gl.where(others > 0, length, otherwise)


@gluon.jit
def delta_place(cu_seqlens_q_ptr, b, h, heads, begin, num_rows):
    """The same as delta_row, where all of it is less than 2^31."""
    if cu_seqlens_q_ptr is None:
        return (b * heads + h) * num_rows
    else:
        return h * num_rows + roomy_row(begin, b)


@gluon.jit
def some_keys(cu_seqlens_k_ptr, num_keys):
    """The length of keys that positions are kept in: of a packed sequence without any, one, which is hidden."""
    if cu_seqlens_k_ptr is None:
        return num_keys
    else:
        return gl.maximum(num_keys, 1)


@gluon.jit
def last_row(cu_seqlens_k_ptr, num_keys, q_len):
    """The last row of a sequence that has a position. Where a packed one has no keys it is the first: of what lies
    behind the last sequence there may be more rows than inputs have room for."""
    if cu_seqlens_k_ptr is None:
        return q_len - 1
    else:
        return gl.where(num_keys > 0, q_len - 1, 0)


@gluon.jit
def hide_if_none(cu_seqlens_k_ptr, num_keys, logits, hidden=-float("inf")):
    """The logits, or what else there is of pairs, and what hides them in a packed sequence without keys."""
    if cu_seqlens_k_ptr is None:
        return logits
    else:
        return gl.where(num_keys > 0, logits, hidden)


@gluon.jit
def head_of(cu_seqlens_q_ptr, b, h, heads):
    """The head among those of all dense sequences, or of a token, as owned_tile has it."""
    if cu_seqlens_q_ptr is None:
        return b * heads + h
    else:
        return h


@gluon.jit
def first_stat(cu_seqlens_q_ptr, b, h, heads, begin, length, total):
    """Where a sequence's rows begin in what has one number a row: [batch, heads, length], or packed [heads, total]."""
    return first_row(cu_seqlens_q_ptr, head_of(cu_seqlens_q_ptr, b, h, heads), begin, length, total)
