"""Dropout: which pairs of query and key are kept, from a seed and their places alone.

The bits are those of five rounds of Philox2x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
Its key, and where its two counters begin, come for each head of each sequence from the seed, by Philox4x32-10; from
there rows and keys are counted in steps of odd numbers of 32 bits. Counted in ones Philox needs seven rounds: neighbours
differ in few bits then, which take two rounds to spread.

One block of 64 bits is for the four pairs of rows r, r + 8 and keys c, c + 8 with r and c of a bit 3 that is 0: 16 bits
each, of which 15 count. In the layouts of matrix products, of scores and of transposed scores alike, one thread has all
four; the compiler finds that it would compute a block four times, and does so once. So kernels of any tiles agree,
without a word between threads. `flashgen.runtime.dropout` computes the same in torch.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def dropout_stream(seed_ptr, b, h):
    """The key of head h in sequence b and its first counter along rows and along keys, uint32."""
    seed = tl.load(seed_ptr)
    key, other_key = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    x, y = b.to(tl.uint32), h.to(tl.uint32)
    z, w = tl.cast(0, tl.uint32), tl.cast(0, tl.uint32)
    for _ in tl.static_range(10):
        one = x.to(tl.uint64) * 0xD2511F53
        other = z.to(tl.uint64) * 0xCD9E8D57
        x, z = (other >> 32).to(tl.uint32) ^ y ^ key, (one >> 32).to(tl.uint32) ^ w ^ other_key
        y, w = other.to(tl.uint32), one.to(tl.uint32)
        key += 0x9E3779B9
        other_key += 0xBB67AE85
    return x, y, z


@triton.jit
def _halves(first, offsets):
    """The places first + offsets without their bit 3, and whether that is set.

    `first` is a multiple of the number of offsets: of 16 or more they alone have the bit.
    """
    if offsets.numel >= 16:
        return (first + (offsets & ~8)).to(tl.uint32), (offsets & 8) != 0
    else:
        places = first + offsets
        return (places & ~8).to(tl.uint32), (places & 8) != 0


@triton.jit
def dropout_bits(stream, row0, rows, col0, cols):
    """The 15 bits of each pair.

    Queries stand in the rows row0 + rows of their sequence, keys at col0 + cols; the shapes of both broadcast.
    """
    key, x, y = stream
    rows, in_lower_rows = _halves(row0, rows)
    cols, in_right_cols = _halves(col0, cols)
    words = philox(x + rows * 0x9E3779B9, y + cols * 0x85EBCA6B, key, in_lower_rows)
    return tl.where(in_right_cols, words >> 16, words) & 0x7FFF


@triton.jit
def philox(x, y, key, in_lower_rows):
    """Of the block at counter (x, y) the word for two pairs of a row: the left one's bits are its lower half."""
    for _ in tl.static_range(5):
        product = x.to(tl.uint64) * 0xD256D193
        x = (product >> 32).to(tl.uint32) ^ key ^ y
        y = product.to(tl.uint32)
        key += 0x9E3779B9
    return tl.where(in_lower_rows, y, x)


@triton.jit
def where_kept(bits, p, x):
    """x of pairs, 0 where one is not kept, which has the probability p rounded down to a multiple of 2**-15; x itself
    where `bits` is None.

    n of the 2**15 values of the bits drop a pair: the lowest ones, or where they are more than half the highest ones,
    since some GPUs compare bits as floats of 16 bits, of which the largest are no numbers.
    """
    if bits is None:
        return x
    else:
        n = tl.cast(p * 32768, tl.uint32)
        lowest = tl.where(n > 16384, 0, n).to(tl.uint32)
        # With a second tl.where of this condition Triton 3.6 may fail, behind one of a branch.
        return x * tl.where(bits - lowest < 32768 - n, 1.0, 0.0)


@triton.jit
def softmax_weights(x, m, l):
    """A step of `online_softmax` up to its product: p = exp2(x - m) [BM, BN], alpha = exp2(old m - m), m and l."""
    m_new = tl.maximum(m, tl.max(x, 1))
    p = tl.exp2(x - m_new[:, None])
    alpha = tl.exp2(m - m_new)
    return p, alpha, m_new, l * alpha + tl.sum(p, 1)


@triton.jit
def softmax_weights_scaled(qk, qk_scale, m, l):
    """The same for logits qk * qk_scale."""
    m_new = tl.maximum(m, tl.max(qk, 1) * qk_scale)
    p = tl.exp2(qk * qk_scale - m_new[:, None])
    alpha = tl.exp2(m - m_new)
    return p, alpha, m_new, l * alpha + tl.sum(p, 1)


@triton.jit
def softmax_weights_natural(x, m, l):
    """The same for logits in units of their own, which may be huge, with exp in the place of exp2."""
    m_new = tl.maximum(m, tl.max(x, 1))
    p = tl.exp2((x - m_new[:, None]) * 1.4426950408889634)
    alpha = tl.exp2((m - m_new) * 1.4426950408889634)
    return p, alpha, m_new, l * alpha + tl.sum(p, 1)
