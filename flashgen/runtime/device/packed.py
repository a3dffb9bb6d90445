"""Which tile of which sequence a program owns, and where its rows lie: for dense and for packed sequences.

Dense ones have one length each, [batch, heads, length, dim], and no cu_seqlens: None. Packed ones lie one after the
other, [total, heads, dim], and cu_seqlens int32 [num_seqs + 1] say on the device where each begins. Nobody has looked
at them: whatever stands there, what follows lies within the packed tensor.

`begin` is where a sequence begins along the axis of sequences: the batch element, or the first token. Batch strides
count in it, and where sequences are packed they are those of a token.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.constexpr_function
def rows_apart():
    """In what `_delta` writes of each row a packed sequence begins at a multiple of so many rows: no tile has rows of
    two."""
    return 128


@triton.jit
def _begin(cu_seqlens_ptr, b, total):
    """Where packed sequence b begins; b up to num_seqs, which is where the last one ends."""
    return tl.minimum(tl.maximum(tl.load(cu_seqlens_ptr + b), 0), total)


@triton.jit
def sequence_range(cu_seqlens_ptr, b, num_seqs, total, longest):
    """begin and length of sequence b; `longest` is the length of dense ones, and the most that a packed one has.

    From num_seqs on there are no more packed ones, and 0 is theirs. The beginning is one of the `total` > 0 tokens,
    also of a sequence without any.
    """
    if cu_seqlens_ptr is None:
        return b, longest
    else:
        begin = _begin(cu_seqlens_ptr, tl.minimum(b, num_seqs), total)
        end = _begin(cu_seqlens_ptr, tl.minimum(b + 1, num_seqs), total)
        length = tl.where(b < num_seqs, tl.minimum(tl.maximum(end - begin, 0), longest), 0)
        return tl.minimum(begin, total - 1), length


@triton.jit
def sequence_or_rest(cu_seqlens_ptr, b, num_seqs, total, longest):
    """The same of packed sequences, and of what lies behind the last of them as one more, of any length."""
    begin, length = sequence_range(cu_seqlens_ptr, b, num_seqs, total, longest)
    return begin, tl.where(b == num_seqs, total - _begin(cu_seqlens_ptr, num_seqs, total), length)


@triton.jit
def slot_tile(cu_seqlens_ptr, num_seqs, total, longest, slot, BLOCK: tl.constexpr):
    """Of the tile in a slot, as owned_tile counts them: its sequence, number, begin and length; see there.

    What lies in front of the first sequence is tile 0 of one without a row.
    """
    b = 0
    last = num_seqs
    while b < last:
        middle = (b + last + 1) // 2
        before = _begin(cu_seqlens_ptr, middle, total) // BLOCK + middle <= slot
        b = tl.where(before, middle, b)
        last = tl.where(before, last, middle - 1)
    begin = _begin(cu_seqlens_ptr, b, total)
    end = _begin(cu_seqlens_ptr, tl.minimum(b + 1, num_seqs), total)
    length = tl.where(b < num_seqs, tl.minimum(tl.maximum(end - begin, 0), longest), total - begin)
    tile = slot - begin // BLOCK - b
    return b, tl.maximum(tile, 0), begin, tl.where(tile < 0, 0, length)


@triton.jit
def owned_tile(
    cu_seqlens_ptr, num_seqs, total, longest, heads, BLOCK: tl.constexpr, LAST_FIRST: tl.constexpr = False, first_head=0
):  # fmt: skip
    """Of the tile of BLOCK rows that a program owns: sequence and head (b, h), its number, begin and length; `head`.

    `head` counts the heads of all dense sequences, or those of a token. Dense: one program for each tile of each head
    of each batch element from `first_head` on, LAST_FIRST from the last tile to the first.

    Packed: one program for each slot of each head. There are total // BLOCK + num_seqs + 1 slots, those of a sequence
    from its begin // BLOCK + b on: enough for its tiles, so that a binary search finds it, and at most one without a
    tile. What lies behind the last sequence is one more.
    """
    if cu_seqlens_ptr is None:
        num_tiles = tl.cdiv(longest, BLOCK)
        tile = num_tiles - 1 - tl.program_id(0) % num_tiles if LAST_FIRST else tl.program_id(0) % num_tiles
        head = first_head + tl.program_id(0) // num_tiles
        b = head // heads
        return head, b, head % heads, tile, b, longest
    else:
        num_slots = total // BLOCK + num_seqs + 1
        h = tl.program_id(0) // num_slots
        slot = tl.program_id(0) % num_slots
        b, tile, begin, length = slot_tile(cu_seqlens_ptr, num_seqs, total, longest, slot, BLOCK)
        return h, b, h, tile, begin, length


@triton.jit
def first_row(cu_seqlens_ptr, head, begin, length, total):
    """Where a sequence's rows begin in what has one number a row: [batch, heads, length], or packed [heads, total]."""
    if cu_seqlens_ptr is None:
        return head.to(tl.int64) * length
    else:
        return head.to(tl.int64) * total + begin


@triton.jit
def roomy_row(begin, b):
    """Where packed sequence b begins where each begins at a multiple of rows_apart(); see owned_tile for slots."""
    return (begin // rows_apart() + b) * rows_apart()


@triton.jit
def delta_row(cu_seqlens_ptr, head, b, begin, num_rows):
    """Where a sequence's rows begin in what _delta writes: [batch, heads, num_rows], or packed [heads, num_rows]."""
    if cu_seqlens_ptr is None:
        return head.to(tl.int64) * num_rows
    else:
        return head.to(tl.int64) * num_rows + roomy_row(begin, b)


@triton.jit
def delta_tile(cu_seqlens_ptr, num_seqs, total, longest, heads, head, tile, BLOCK: tl.constexpr):
    """Of tile `tile` of BLOCK rows of what _delta writes for a head, of all dense sequences or of packed ones: batch
    element or sequence and head (b, h), its first row, begin and length; BLOCK is at most rows_apart() where they are
    packed.

    Rows that belong to no sequence are those of one without any.
    """
    if cu_seqlens_ptr is None:
        return head // heads, head % heads, tile * BLOCK, head // heads, longest
    else:
        b, place, begin, length = slot_tile(
            cu_seqlens_ptr, num_seqs, total, longest, tile * BLOCK // rows_apart(), rows_apart()
        )
        return b, head, place * rows_apart() + tile * BLOCK % rows_apart(), begin, length


@triton.jit
def output_rows(cu_seqlens_ptr, rows, head, begin, length, heads):
    """Rows of a sequence in an output [batch, heads, length, dim], or packed [total, heads, dim]."""
    if cu_seqlens_ptr is None:
        return head.to(tl.int64) * length + rows
    else:
        return (begin + rows).to(tl.int64) * heads + head


@triton.jit
def load_rows(cu_seqlens_ptr, ptrs, rows, length, other):
    """One number for each of a tile's rows, at `ptrs`: beyond the length is room for it, or packed another sequence."""
    if cu_seqlens_ptr is None:
        return tl.load(ptrs)
    else:
        return tl.load(ptrs, mask=rows < length, other=other)


@triton.jit
def store_zeros(ptr, row0, head, begin, length, heads, dim, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Zeros in BLOCK rows of a packed sequence in an output [total, heads, dim], as far as there are such rows."""
    rows = row0 + tl.arange(0, BLOCK)
    cols = tl.arange(0, WIDTH)
    inside = (rows < length)[:, None] & (cols < dim)[None, :]
    to = ptr + ((begin + rows).to(tl.int64) * heads + head)[:, None] * dim + cols[None, :]
    tl.store(to, tl.zeros([BLOCK, WIDTH], ptr.dtype.element_ty), mask=inside)


@triton.jit
def store_nothing_seen(
    out_ptr, lse_ptr, max_ptr, residue_ptr, row0, head, begin, length, total, heads, v_head_dim,
    BLOCK: tl.constexpr, V_HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """What BLOCK rows of a packed sequence get that see no key, as far as there are such rows."""
    rows = row0 + tl.arange(0, BLOCK)
    lse_rows = head.to(tl.int64) * total + begin + rows
    nothing = tl.full([BLOCK], -float("inf"), tl.float32)
    tl.store(lse_ptr + lse_rows, nothing, mask=rows < length)
    if max_ptr is not None:
        tl.store(max_ptr + lse_rows, nothing, mask=rows < length)
    if residue_ptr is not None:
        tl.store(residue_ptr + lse_rows, tl.zeros([BLOCK], tl.float32), mask=rows < length)
    store_zeros(out_ptr, row0, head, begin, length, heads, v_head_dim, BLOCK, V_HEAD_DIM)
