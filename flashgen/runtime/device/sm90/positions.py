"""Positions of keys and rows as registers hold them best, and what compilers must not know of a value."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def opaque(value):
    """The same int32, of which the compiler does not know it: it keeps nothing in registers that follows from it."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [value], gl.int32, False, 1)


@gluon.jit
def masked_keys(start, BN: gl.constexpr, layout: gl.constexpr):
    """The positions [1, BN] of the keys of a tile that needs the mask.

    LLVM must not see what they are: it would compare all pairs as one vector and pack the bits.
    """
    return opaque(start + gl.arange(0, BN, layout=layout))[None, :]


@gluon.jit
def affine_bias(per_key, ROWS: gl.constexpr, BN: gl.constexpr, layout: gl.constexpr):
    """per_key * (number of the column) [ROWS, BN], one FMA a column.

    What threads share of a number, the multiple of eight, is a constant; LLVM must not compute it all ahead of a loop.
    """
    in_eights: gl.constexpr = gl.reshape(gl.zeros([ROWS, BN], gl.float32, layout), [ROWS, BN // 8, 8]).type.layout
    eights = 8 * gl.arange(0, BN // 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, in_eights)))
    within = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, in_eights)))
    per_key = gl.full([ROWS], 0.0, gl.float32, gl.SliceLayout(1, gl.SliceLayout(2, in_eights))) + per_key
    per_key = gl.inline_asm_elementwise("mov.b32 $0, $1;", "=f,f", [per_key], gl.float32, False, 1)[:, None, None]
    sums = eights.to(gl.float32)[None, :, None] * per_key + within.to(gl.float32)[None, None, :] * per_key
    return gl.convert_layout(gl.reshape(sums, [ROWS, BN]), layout, assert_trivial=True)


@gluon.jit
def rows_from(first, BM: gl.constexpr, layout: gl.constexpr):
    """Which rows of a tile come from place `first` on, [1, BM] or for each key [64, BM].

    A row's place is taken apart: multiples of 8 are constants of the code, the rest is the same in all of a thread's.
    """
    places = gl.arange(0, BM, layout=layout)[None, :]
    return (places & -8) >= first - (places & 7)


@gluon.jit
def rows_to(last, BM: gl.constexpr, layout: gl.constexpr):
    """The same up to place `last`."""
    places = gl.arange(0, BM, layout=layout)[None, :]
    return (places & -8) <= last - (places & 7)
