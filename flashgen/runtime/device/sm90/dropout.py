"""Dropout where tensor cores work beside it: the bits of `flashgen.runtime.device.dropout`, and later what they keep."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from flashgen.runtime.device.dropout import bits_of, philox
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
    x, y = (row0 + (rows & ~8)).to(gl.uint32) + x, (col0 + (cols & ~8)).to(gl.uint32) + y
    return philox(x, y, key, (rows & 8) != 0)


@gluon.jit
def drop(p, words, dropout_p, cols):
    """p of a tile of pairs, 0 for those that are not kept; p itself without words."""
    if words is None:
        return p
    else:
        bits = bits_of(words, (cols & 8) != 0)
        return gl.where(bits >= (gl.cast(dropout_p * 65536, gl.uint32) << 16), p, _hidden_zero(dropout_p))


@gluon.jit
def drop_and_ds(p, dp, delta, words, dropout_p, cols):
    """p, 0 for pairs that are not kept, and ds = p * (dp - delta) of a tile, with 0 for dp of those."""
    if words is None:
        return p, p * (dp - delta)
    else:
        return drop(p, words, dropout_p, cols), p * (drop(dp, words, dropout_p, cols) - delta)


@gluon.jit
def _hidden_zero(dropout_p):
    """A 0 that the compiler does not know: it would put one into packed numbers of 16 bits, each by itself."""
    return dropout_p * 0.0
