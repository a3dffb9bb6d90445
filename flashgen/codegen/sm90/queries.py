"""Which tiles of queries see a tile of keys, for the Hopper kernels for dK and dV.

Both roles ask, the warp that loads and those that compute, so it is a function of its own: `_queries_of`. Its tiles are
numbered, the mixed ones first, and `_query_tile` finds the place of each, or for a schedule `scheduled_query_tile`.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.analysis.facts import Facts
from flashgen.analysis.levels import ROW
from flashgen.codegen.arguments import ROW_SCHEDULE, extra_arguments, new_prologue
from flashgen.codegen.limits import packed_row, row_limits, schedule_row
from flashgen.codegen.sm90.keys import precision_of
from flashgen.emit.dialects import GLUON

_SIZES = ("heads", "kv_heads", "q_len", "kv_len", "head_dim")
_OF_TILE = ("b", "h", "kv_h", "begin_q", "begin_k", "cu_seqlens_q_ptr")
_POSITIONS = ("k", "k_first", "k_last")

# Full tiles from the first that any key needs, mixed ones on the left of them.
_UPWARDS: tuple[str, ...] = (
    "num_tiles = gl.cdiv(gl.maximum(q_len - first, 0), BM)",
    "num_mixed = gl.minimum(gl.cdiv(gl.maximum(full_start - first, 0), BM), num_tiles)",
)
_PLACE_UPWARDS: tuple[str, ...] = ("start = first + i * BM",)

# From the last one down: mixed tiles, then full ones.
_DOWNWARDS: tuple[str, ...] = (
    "num_tiles = gl.cdiv(gl.maximum({stop}, 0), BM)",
    "num_mixed = num_tiles - gl.maximum(full_end, 0) // BM",
)
_PLACE_DOWNWARDS: tuple[str, ...] = ("start = (num_tiles - 1 - i) * BM",)

# Full tiles between mixed ones: those on the left come first, then those on the right.
_BETWEEN: tuple[str, ...] = (
    "num_tiles = gl.cdiv(gl.maximum({stop} - first, 0), BM)",
    "num_left = gl.minimum(gl.cdiv(gl.maximum(full_start - first, 0), BM), num_tiles)",
    "num_right = gl.minimum(num_tiles - gl.maximum(full_end - first, 0) // BM, num_tiles - num_left)",
    "num_mixed = num_left + num_right",
)
_PLACE_BETWEEN: tuple[str, ...] = (
    "right = num_tiles - 1 - (i - num_left)",
    "start = first + gl.where(i < num_left, i, gl.where(i < num_mixed, right, i - num_right)) * BM",
)


@dataclass(frozen=True)
class QueryTiles:
    """Which tiles of queries see a tile of keys: the functions `_queries_of` and `_query_tile`.

    `lines` compute what is `returned`; `place` are the statements that lead from number `i` to the first query `start`
    by the values of `placed_by`. `arguments` are those of the variant that `_queries_of` takes, `names` all of them.
    """

    lines: tuple[str, ...]
    returned: tuple[str, ...]
    place: tuple[str, ...]
    placed_by: tuple[str, ...]
    names: tuple[str, ...]
    arguments: tuple[str, ...]
    positions: frozenset[str]

    @property
    def parameters(self) -> str:
        return ", ".join(f"{name}: gl.constexpr" if name.isupper() else name for name in self.names)

    @property
    def call(self) -> str:
        return f"{', '.join(self.returned)} = _queries_of({', '.join(self.names)})"

    def call_for(self, *read: str) -> str:
        """The call for a role that reads only these of the names, or those that lead to places."""
        read = read or ("num_tiles", *self.placed_by)
        found = ", ".join(name if name in read else "_" for name in self.returned)
        return f"{found} = _queries_of({', '.join(self.names)})"

    @property
    def start(self) -> str:
        return f"{'' if self.place else 'scheduled'}_query_tile(i, {', '.join(self.placed_by)}, BM)"


def query_tiles(facts: Facts, checks_end: bool) -> QueryTiles:
    """Work them out; tiles that reach beyond the last query need the mask where `checks_end`, as for `row_limits`."""
    if facts.rows_scheduled:
        return _scheduled(facts)
    prologue = new_prologue(facts, walked=ROW, dialect=GLUON, packs=True)
    limits = row_limits(facts.rows, prologue, checks_end)
    placed_by: tuple[str, ...]
    if "full_end" not in limits.masked.reads:
        lines, place, placed_by = _UPWARDS, _PLACE_UPWARDS, ("first",)
    elif "full_start" not in limits.masked.reads:
        lines, place, placed_by = _DOWNWARDS, _PLACE_DOWNWARDS, ("num_tiles",)
    else:
        lines, place = _BETWEEN, _PLACE_BETWEEN
        placed_by = ("num_tiles", "num_mixed", "num_left", "num_right", "first")
    reads = prologue.reads | {"q_len", "kv_len"}
    extra = extra_arguments(facts.variant, reads)
    sizes = [name for name in _SIZES if name in reads]
    return QueryTiles(
        lines=(
            *precision_of(reads),
            *prologue.lines,
            *limits.lines,
            *(line.format(stop=limits.stop) for line in lines),
        ),
        returned=tuple(dict.fromkeys(("num_tiles", "num_mixed", *placed_by))),
        place=place,
        placed_by=placed_by,
        names=("col0", *(name for name in _OF_TILE if name in reads), *extra, *sizes, "BM", "BN"),
        arguments=extra,
        positions=frozenset(reads & {*_POSITIONS}),
    )


def _scheduled(facts: Facts) -> QueryTiles:
    by = ["b", *(["h"] if facts.mask_by_head else [])]
    num_kv_tiles = "gl.cdiv(longest_k, BN)"
    placed_by = ("num_mixed", "row_tiles_ptr", "num_q_tiles")
    returned = ("num_tiles", *placed_by[:2])
    lines = (
        "tile = col0 // BN",
        "if cu_seqlens_q_ptr is not None:",
        "    # What lies behind the last sequence may be longer than each of them.",
        f"    tile = gl.minimum(tile, {num_kv_tiles} - 1)",
        *packed_row(facts, num_kv_tiles, f"row = {schedule_row(facts, num_kv_tiles, 'tile', GLUON)}", GLUON),
        f"{', '.join(returned)} = scheduled_queries(row, {', '.join(ROW_SCHEDULE)}, cu_seqlens_q_ptr, q_len)",
    )
    sizes = ["heads"] if facts.mask_by_head else []
    return QueryTiles(
        lines=lines,
        returned=returned,
        place=(),
        placed_by=placed_by,
        names=("col0", *by, *ROW_SCHEDULE, *sizes, "q_len", "longest_k", "cu_seqlens_q_ptr", "BN"),
        arguments=ROW_SCHEDULE,
        positions=frozenset(),
    )
