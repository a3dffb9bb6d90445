"""Dense and packed sequences in the kernels for Hopper: where TMA finds their rows, and what there is of each.

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

from flashgen.runtime.device.packed import first_row, roomy_row
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
