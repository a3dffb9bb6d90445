"""Which tiles of keys a tile of queries needs: the ends of a kernel's loops, or a row of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flashgen.analysis.facts import Facts
from flashgen.analysis.levels import ROW, level
from flashgen.codegen.arguments import SCHEDULE
from flashgen.emit.dialects import TRITON, Dialect
from flashgen.emit.fragments import Fragment
from flashgen.emit.prologue import Prologue
from flashgen.lang.bounds import KeyRange
from flashgen.lang.intervals import INT32, MAX_LENGTH
from flashgen.lang.linear import expression, linear
from flashgen.lang.monotone import increasing_in_q
from flashgen.lang.nodes import Expr, Type, const, op
from flashgen.lang.tiles import CORNERS
from flashgen.lang.traversal import substitute, walk
from flashgen.lang.variables import K, Q

# A position and some tiles.
_ROOM = 2 * MAX_LENGTH


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
        first, last = CORNERS[owned]
        end = substitute(bound, {owned: first if (which == "least") == (sign >= 0) else last})
        if level(end) & ROW:
            # It differs between rows at the same position too.
            end = op("tile_min" if which == "least" else "tile_max", end)
    return clipped(prologue.inline(end), bound, prologue)


def clipped(text: str, bound: Expr, prologue: Prologue) -> str:
    """The text of a bound, or of what it comes to somewhere, as int32: clipped where a part of it may not fit, or it
    may come so near to the ends of int32 that positions and tiles counted from there would not."""
    ranges = prologue.ranges
    fits = all(ranges.fits_int32(node) for node in walk(bound) if node.type is Type.INT)
    if fits and ranges.of(bound).within(INT32.low + _ROOM, INT32.high - _ROOM):
        return text
    return f"clip({text})"


def loop_limits(facts: Facts, prologue: Prologue) -> Fragment:
    """Statements for `first`, `full_start`, `full_end` and `stop`, the ends of the loops over keys; for `first` and
    `stop` alone where the mask says more than these, so that no key is known to be seen by each row.

    What they read of the prologue is not among their `reads`.
    """
    keys, inside, call = facts.keys, facts.ends_before_kv_len, prologue.dialect.call
    reads = ("BN",) if keys.upper and inside else ("BN", "kv_len")
    if keys.upper:
        assert keys.upper_bound is not None
        least, greatest = extremes(expression(linear(op("add", keys.upper_bound, const(1)))), prologue)
        stop, end = (text if inside else str(call("minimum", text, "kv_len")) for text in (greatest, least))
    else:
        stop, end = "kv_len", "kv_len"
    whole = f"{call('maximum', end, '0')} // BN * BN"
    if not keys.lower:
        text = "# Keys below stop are seen by some row of the tile, those below full_end by each row."
        some, each = {"stop": stop}, {"full_end": whole}
    else:
        assert keys.lower_bound is not None
        least, greatest = extremes(keys.lower_bound, prologue)
        start = call("cdiv", call("maximum", greatest, "0"), "BN")
        text = "# Keys [first, stop) are seen by some row of the tile, [full_start, full_end) by each row."
        some = {"first": f"{call('maximum', least, '0')} // BN * BN", "stop": f"{call('maximum', stop, 'first')}"}
        each = {
            "full_start": f"{call('minimum', start, call('cdiv', 'stop', 'BN'))} * BN",
            "full_end": f"{call('maximum', whole, 'full_start')}",
        }
    if not keys.closed:
        text, each = "# What is left out here is seen by no row of the tile.", {}
    ends = {**some, **each}
    return Fragment(("", text, *(f"{name} = {end}" for name, end in ends.items())), reads=reads, defines=tuple(ends))


def scheduled_tiles(
    facts: Facts, schedule: Sequence[str] = SCHEDULE, owned: str = "queries", walked: str = "keys"
) -> tuple[str, ...]:
    """Statements that read this tile's row of the schedule."""
    return (
        "",
        f"# What the schedule says of this tile of {owned}: which tiles of {walked} are mixed and which are full.",
        *packed_row(facts, "num_tiles", f"row = {schedule_row(facts, 'num_tiles', 'tile')}"),
        "num_mixed = tl.load(counts_ptr + 3 * row)",
        "num_full = tl.load(counts_ptr + 3 * row + 1)",
        f"tiles_ptr += row * {schedule[-1]}",
    )


def packed_row(facts: Facts, num_tiles: str, row: str, dialect: Dialect = TRITON) -> tuple[str, ...]:
    """Statements for the row of a schedule, which each packed sequence has for itself."""
    if facts.mask_by_batch:
        return (row,)
    rows = f"heads * {num_tiles}" if facts.mask_by_head else num_tiles
    return (row, "if cu_seqlens_q_ptr is not None:", f"    row += b.to({dialect.name('int64')}) * {rows}")


def schedule_row(facts: Facts, num_tiles: str, tile: str, dialect: Dialect = TRITON) -> str:
    """The row of the schedule for a tile of queries, one of `num_tiles`: batch and heads as far as the mask tells."""
    wide = dialect.name("int64")
    if facts.mask_by_batch:
        group = "(b * heads + h)" if facts.mask_by_head else "b"
        return f"{group}.to({wide}) * {num_tiles} + {tile}"
    return f"h.to({wide}) * {num_tiles} + {tile}" if facts.mask_by_head else f"{tile}.to({wide})"


@dataclass(frozen=True)
class Limits:
    """Statements for the limits of a loop over queries; where it begins and ends, which of its tiles need the mask."""

    lines: tuple[str, ...]
    first: str
    stop: str
    masked: Fragment


def row_limits(rows: KeyRange, prologue: Prologue, checks_end: bool) -> Limits:
    """Where the loop over queries begins and ends, and which of its tiles need the mask.

    Those of a ragged tile of keys do; a ragged tile of queries does where `checks_end`: its rows beyond the last have
    a log-sum-exp of infinity, which settles the matter unless the score function makes NaN of zeros.
    """
    lines = ["", "# Rows [first, stop) see some key of the tile, rows [full_start, full_end) each of them."]
    ragged, first, stop = "col0 + BN > kv_len", "0", "q_len"
    call, tests = prologue.dialect.call, dict[str, str]()
    if rows.lower:
        assert rows.lower_bound is not None
        least, greatest = extremes(rows.lower_bound, prologue, K)
        lines += [
            f"first = {call('maximum', least, '0')} // BM * BM",
            f"full_start = {call('where', ragged, 'q_len', greatest)}",
        ]
        first, tests["full_start"] = "first", "start < full_start"
    if rows.upper or checks_end or not rows.lower:
        end = "q_len"
        if rows.upper_bound is not None:
            least, greatest = extremes(expression(linear(op("add", rows.upper_bound, const(1)))), prologue, K)
            lines.append(f"stop = {call('minimum', greatest, 'q_len')}")
            stop, end = "stop", str(call("minimum", least, "q_len"))
        lines.append(f"full_end = {end if rows.lower else call('where', ragged, '0', end)}")
        tests["full_end"] = "start + BM > full_end"
    if not rows.lower:
        lines[1] = "# Rows below " + stop + " see some key of the tile, those below full_end each of them."
    elif stop == "q_len":
        lines[1] = "# Rows from first on see some key of the tile, those from full_start on each of them."
    masked = " | ".join(f"({test})" for test in tests.values()) if len(tests) > 1 else "".join(tests.values())
    return Limits(tuple(lines), first, stop, Fragment(results=(masked,), reads=tuple(tests)))
