"""Dropout where tensor cores work beside it: the bits of `flashgen.runtime.device.dropout`, and later what they keep.

Two pairs are compared at once, as numbers of 16 bits without their sign. They are in the order of their 15 bits, but
for the largest, which are no numbers: not below any threshold either. Thresholds are numbers: see `_threshold`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from flashgen.runtime.device.sm90.positions import opaque


@gluon.jit
def dropout_words(stream, row0, rows, col0, cols):
    """The bits of a tile of pairs, in words of 32 for each two.

    For a place in front of a wait: they are drawn beside the products that are waited for, since ptxas moves nothing
    across one.
    """
    key, x, y = stream
    # The compiler would keep the keys of all rounds and the counters of all rows from step to step.
    key, x, y = opaque(key).to(gl.uint32), opaque(x).to(gl.uint32), opaque(y).to(gl.uint32)
    x += row0.to(gl.uint32) * 0x9E3779B9
    y += col0.to(gl.uint32) * 0x85EBCA6B
    x, y = _counted(x, rows, 0x9E3779B9), _counted(y, cols, 0x85EBCA6B)
    for _ in gl.static_range(5):
        low, high = _wide_product(x)
        x, y = high ^ key ^ y, low
        key += 0x9E3779B9
    return gl.where((rows & 8) != 0, y, x)


@gluon.jit
def _counted(first, places, STEP: gl.constexpr):
    """The counters of places, without their bit 3: of a thread's all differ from one of them by constants of the code."""
    return first + (places & 7).to(gl.uint32) * STEP + (places & -16).to(gl.uint32) * STEP


@gluon.jit
def _wide_product(x):
    """The lower and the upper words of Philox's products; of two the compiler would make two products."""
    return gl.inline_asm_elementwise(
        "{ .reg .b64 t; mul.wide.u32 t, $2, 0xD256D193; mov.b64 {$0, $1}, t; }",
        "=r,=r,r", [x], (gl.uint32, gl.uint32), True, 1,
    )  # fmt: skip


@gluon.jit
def _threshold(dropout_p):
    """What bits are compared with, twice in a word, and 1 where those that are not below it are dropped, else 0."""
    n = gl.cast(dropout_p * 32768, gl.int32)
    flips = n > 16384
    return gl.where(flips, 32768 - n, n) * 0x10001, flips.to(gl.int32)


@gluon.jit
def kept_pairs(stream, row0, rows, col0, cols, dropout_p):
    """A mask of 16 bits for each pair of a tile whose columns are keys, for the neighbours of a row in one int32, as
    `packed` has them: ones where bits are not below the threshold. For the same place as `dropout_words`."""
    words = dropout_words(stream, row0, rows, col0, cols)
    left, right = _neighbours(words)
    # Of both neighbours' words the lower halves, or the upper ones.
    halves, _ = _neighbours(gl.where((cols & 8) != 0, 0x7632, 0x5410) + gl.zeros_like(words).to(gl.int32))
    threshold, _ = _threshold(dropout_p)
    return gl.inline_asm_elementwise(
        "{ .reg .b32 v; prmt.b32 v, $1, $2, $3; abs.f16x2 v, v; set.geu.u32.f16x2 $0, v, $4; }",
        "=r,r,r,r,r", [left, right, halves, threshold], gl.int32, True, 1,
    )  # fmt: skip


@gluon.jit
def _neighbours(tile):
    """The left and the right ones of two in a row each."""
    return gl.split(gl.reshape(tile, [tile.shape[0], tile.shape[1] // 2, 2]))


@gluon.jit
def drop_packed(pairs, kept, dropout_p):
    """What is kept of weights that `packed` has put together; all without the masks of `kept_pairs`."""
    if kept is None:
        return pairs
    else:
        _, flips = _threshold(dropout_p)
        return pairs & (kept ^ -flips)


@gluon.jit
def drop(p, words, dropout_p, BY_KEY: gl.constexpr = False):
    """p of a tile of pairs, 0 for those that are not kept; p itself without words. Keys are columns, or BY_KEY rows.

    A thread has rows r, r + 8 by columns c, c + 1, then the same of columns c + 8: a word is for the first and the fifth
    of them, or if it is by keys for the first and the third.
    """
    if words is None:
        return p
    else:
        threshold, flips = _threshold(dropout_p)
        if BY_KEY:
            return gl.inline_asm_elementwise(
                """{
                    .reg .pred f, a, b; .reg .b32 v;
                    setp.ne.s32 f, $16, 0;
                    abs.f16x2 v, $8; setp.geu.xor.f16x2 a|b, v, $12, f;
                    selp.f32 $0, $4, 0f00000000, a; selp.f32 $2, $6, 0f00000000, b;
                    abs.f16x2 v, $9; setp.geu.xor.f16x2 a|b, v, $12, f;
                    selp.f32 $1, $5, 0f00000000, a; selp.f32 $3, $7, 0f00000000, b;
                }""",
                "=f,=f,=f,=f,f,f,f,f,r,r,r,r,r,r,r,r,r,r,r,r", [p, words, threshold, flips], gl.float32, True, 4,
            )  # fmt: skip
        else:
            return gl.inline_asm_elementwise(
                """{
                    .reg .pred f, a, b; .reg .b32 v;
                    setp.ne.s32 f, $32, 0;
                    abs.f16x2 v, $16; setp.geu.xor.f16x2 a|b, v, $24, f;
                    selp.f32 $0, $8, 0f00000000, a; selp.f32 $4, $12, 0f00000000, b;
                    abs.f16x2 v, $17; setp.geu.xor.f16x2 a|b, v, $24, f;
                    selp.f32 $1, $9, 0f00000000, a; selp.f32 $5, $13, 0f00000000, b;
                    abs.f16x2 v, $18; setp.geu.xor.f16x2 a|b, v, $24, f;
                    selp.f32 $2, $10, 0f00000000, a; selp.f32 $6, $14, 0f00000000, b;
                    abs.f16x2 v, $19; setp.geu.xor.f16x2 a|b, v, $24, f;
                    selp.f32 $3, $11, 0f00000000, a; selp.f32 $7, $15, 0f00000000, b;
                }""",
                "=f,=f,=f,=f,=f,=f,=f,=f,f,f,f,f,f,f,f,f,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r",
                [p, words, threshold, flips], gl.float32, True, 8,
            )  # fmt: skip


@gluon.jit
def drop_and_ds(p, dp, delta, words, dropout_p):
    """p of a tile whose rows are keys, 0 for pairs that are not kept, and ds = p * (dp - delta), with 0 for their dp."""
    if words is None:
        return p, p * (dp - delta)
    else:
        kept = drop(p, words, dropout_p, True)
        return kept, kept * dp - p * delta
