"""Where the keys of a sequence lie in a paged cache, and its numbers as products take them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def page_of(pages_ptr, keys, num_blocks, BLOCK_SIZE: tl.constexpr):
    """The page in which each key lies, and its slot there; pages_ptr is the sequence's row of the block table.

    Whatever stands in the table, the page is one of the cache.
    """
    page = tl.load(pages_ptr + keys // BLOCK_SIZE)
    return tl.minimum(tl.maximum(page, 0), num_blocks - 1).to(tl.int64), (keys % BLOCK_SIZE).to(tl.int64)


@triton.jit
def as_factor(tile, like):
    """A tile of a cache as a product with `like` takes it; of 8 bits, each number is one of float16's too.

    From compute capability 8.9 on one instruction makes two of them; to bfloat16 it takes several.
    """
    if tile.dtype.primitive_bitwidth == 8:
        return tile.to(tl.float32 if like.dtype == tl.float32 else tl.float16)
    else:
        return tile


@triton.jit
def converted(tile):
    """The same tile, on NVIDIA's GPUs: one of 16 bits, made of one of 8, is made before threads exchange its numbers.

    Left to itself the compiler has them exchange those of 8 bits, each thread a byte at a time (Triton 3.6 to 3.9). It
    cannot pipeline this for the products of warpgroups, which do not need it.
    """
    if tile.dtype.primitive_bitwidth == 16:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tile], tile.dtype, is_pure=False, pack=2)
    else:
        return tile


@triton.jit
def beside_cache(q_tile, cache_ptr):
    """Rows of queries as a product with a cache's tiles takes them, and what its result is to be multiplied by, [BM].

    Beside 8 bits the product is float16's: rows are divided by powers of two so that none passes its range.
    """
    if (cache_ptr.dtype.element_ty.primitive_bitwidth == 8) & (q_tile.dtype != tl.float32):
        x = q_tile.to(tl.float32)
        highest = tl.max(tl.abs(x), 1)
        power = tl.exp2(tl.floor(tl.log2(tl.where(highest > 0, highest, 1.0))))
        return (x / power[:, None]).to(tl.float16), power
    else:
        return q_tile, tl.zeros([q_tile.shape[0]], tl.float32) + 1.0
