"""Which tiles of keys a tile of queries needs: the ends of a kernel's loops, or a row of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from flashgen.analysis.facts import Facts
from flashgen.emit.dialects import TRITON, Dialect
from flashgen.emit.fragments import Fragment
from flashgen.emit.prologue import Prologue
from flashgen.lang.bounds import Q, increasing_in_q
from flashgen.lang.linear import expression, linear
from flashgen.lang.nodes import Expr, Type, const, op, substitute, walk
from flashgen.lang.tiles import CORNERS

SCHEDULE = ("counts_ptr", "tiles_ptr", "num_k_tiles")


def extremes(bound: Expr, prologue: Prologue, owned: Expr = Q) -> tuple[str, str]:
    """The least and greatest value of a bound over the tile's rows, or keys, as texts of int32 scalars.

    `owned` is what the bound depends on: Q or K.
    """
    return extreme(bound, prologue, "least", owned), extreme(bound, prologue, "greatest", owned)


def extreme(bound: Expr, prologue: Prologue, which: Literal["least", "greatest"], owned: Expr = Q) -> str:
    """One of them."""
    sign = increasing_in_q(bound if owned is Q else substitute(bound, {owned: Q}), prologue.ranges)
    if sign is None:
        end = op("tile_min" if which == "least" else "tile_max", bound)
    else:
        first, last = CORNERS["q" if owned is Q else "k"]
        end = substitute(bound, {owned: first if (which == "least") == (sign >= 0) else last})
    return clipped(prologue.inline(end), bound, prologue)


def clipped(text: str, bound: Expr, prologue: Prologue) -> str:
    """The text of a bound, or of what it comes to somewhere, as int32: clipped where a part of it may not fit."""
    if all(prologue.ranges.fits_int32(node) for node in walk(bound) if node.type is Type.INT):
        return text
    prologue.helpers.add("_clip")
    return f"_clip({text})"


def loop_limits(facts: Facts, prologue: Prologue) -> Fragment:
    """Statements for `first`, `full_start`, `full_end` and `stop`, the ends of the loops over keys.

    What they read of the prologue is not among their `reads`.
    """
    lines = ["", "# Keys [first, stop) are seen by some row of the tile, [full_start, full_end) by each row."]
    keys, inside, call = facts.keys, facts.ends_before_kv_len, prologue.dialect.call
    reads = ("BN",) if keys.upper and inside else ("BN", "kv_len")
    if keys.upper:
        assert keys.upper_bound is not None
        least, greatest = extremes(expression(linear(op("add", keys.upper_bound, const(1)))), prologue)
        stop, end = (each if inside else str(call("minimum", each, "kv_len")) for each in (greatest, least))
    else:
        stop, end = "kv_len", "kv_len"
    whole = f"{call('maximum', end, '0')} // BN * BN"
    if not keys.lower:
        lines[1] = "# Keys below stop are seen by some row of the tile, those below full_end by each row."
        lines += [f"stop = {stop}", f"full_end = {whole}"]
        return Fragment(tuple(lines), reads=reads, defines=("stop", "full_end"))
    assert keys.lower_bound is not None
    least, greatest = extremes(keys.lower_bound, prologue)
    start = call("cdiv", call("maximum", greatest, "0"), "BN")
    lines += [
        f"first = {call('maximum', least, '0')} // BN * BN",
        f"stop = {call('maximum', stop, 'first')}",
        f"full_start = {call('minimum', start, call('cdiv', 'stop', 'BN'))} * BN",
        f"full_end = {call('maximum', whole, 'full_start')}",
    ]
    return Fragment(tuple(lines), reads=reads, defines=("first", "stop", "full_start", "full_end"))


def scheduled_tiles(
    facts: Facts, schedule: Sequence[str] = SCHEDULE, owned: str = "queries", walked: str = "keys"
) -> tuple[str, ...]:
    """Statements that read this tile's row of the schedule."""
    return (
        "",
        f"# What the schedule says of this tile of {owned}: which tiles of {walked} are mixed and which are full.",
        f"row = {schedule_row(facts, 'num_tiles', 'tile')}",
        "num_mixed = tl.load(counts_ptr + 3 * row)",
        "num_full = tl.load(counts_ptr + 3 * row + 1)",
        f"tiles_ptr += row * {schedule[-1]}",
    )


def schedule_row(facts: Facts, num_tiles: str, tile: str, dialect: Dialect = TRITON) -> str:
    """The row of the schedule for a tile of queries, one of `num_tiles`: batch and heads as far as the mask tells."""
    wide = dialect.name("int64")
    if facts.mask_by_batch:
        group = "(b * heads + h)" if facts.mask_by_head else "b"
        return f"{group}.to({wide}) * {num_tiles} + {tile}"
    return f"h.to({wide}) * {num_tiles} + {tile}" if facts.mask_by_head else f"{tile}.to({wide})"
