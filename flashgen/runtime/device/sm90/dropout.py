"""Dropout where registers are scarce: `flashgen.runtime.device.dropout` one pair after the other."""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from flashgen.runtime.device.dropout import bits_of_pair
from flashgen.runtime.device.sm90.positions import opaque


@gluon.jit
def drop(p, stream, dropout_p, row0, rows, col0, cols):
    """p of a tile of pairs, 0 for those that are not kept; p itself without a stream."""
    if stream is None:
        return p
    else:
        key, x, y = stream
        x, y = (row0 + (rows & ~8)).to(gl.uint32) + x, (col0 + (cols & ~8)).to(gl.uint32) + y
        threshold = gl.cast(dropout_p * 65536, gl.uint32) << 16
        return gl.map_elementwise(
            _kept_or_0, p, x, y, key, (rows & 8) != 0, (cols & 8) != 0, threshold, _hidden_zero(dropout_p)
        )


@gluon.jit
def drop_and_ds(p, dp, delta, stream, dropout_p, row0, rows, col0, cols):
    """p, 0 for pairs that are not kept, and ds = p * (dp - delta) of a tile, with 0 for dp of those."""
    if stream is None:
        return p, p * (dp - delta)
    else:
        key, x, y = stream
        # The compiler would keep the keys of all rounds and the counters of all rows from step to step.
        key, x, y = opaque(key).to(gl.uint32), opaque(x).to(gl.uint32), opaque(y).to(gl.uint32)
        x, y = (row0 + (rows & ~8)).to(gl.uint32) + x, (col0 + (cols & ~8)).to(gl.uint32) + y
        threshold = gl.cast(dropout_p * 65536, gl.uint32) << 16
        return gl.map_elementwise(
            _kept_and_ds, p, dp, delta, x, y, key, (rows & 8) != 0, (cols & 8) != 0, threshold, _hidden_zero(dropout_p)
        )


@gluon.jit
def _hidden_zero(dropout_p):
    """A 0 that the compiler does not know: it would put one into packed numbers of 16 bits, each by itself."""
    return dropout_p * 0.0


@triton.jit
def _kept_or_0(x, row, col, key, in_lower_rows, in_right_cols, threshold, zero):
    return tl.where(bits_of_pair(row, col, key, in_lower_rows, in_right_cols) >= threshold, x, zero)


@triton.jit
def _kept_and_ds(p, dp, delta, row, col, key, in_lower_rows, in_right_cols, threshold, zero):
    kept = bits_of_pair(row, col, key, in_lower_rows, in_right_cols) >= threshold
    return tl.where(kept, p, zero), p * (tl.where(kept, dp, 0.0) - delta)
