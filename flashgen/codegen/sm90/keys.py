"""Which tiles of keys a tile of queries needs in the Hopper kernels.

Both roles ask it, the warp that loads and those that compute, so it is a function of its own. Its tiles are numbered,
the mixed ones first, and `_key_tile` finds the place of each, or for a schedule `scheduled_key_tile`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from flashgen.analysis.facts import Facts
from flashgen.analysis.reads import counts_queries_for_first_pair
from flashgen.codegen.arguments import SCHEDULE, extra_arguments, new_prologue
from flashgen.codegen.limits import loop_limits, packed_row, schedule_row
from flashgen.emit.dialects import GLUON

_POSITIONS = ("q", "q_first", "q_last")
_LONGEST = {"q_len": "longest_q", "kv_len": "longest_k"}

# The tiles of keys from the last one down: mixed tiles, then full ones.
_DOWNWARDS = (
    "num_tiles = gl.maximum(gl.cdiv(stop, BN), 1)",
    "num_mixed = num_tiles - full_end // BN",
)
_PLACE_DOWNWARDS = ("(num_tiles - 1 - i) * BN",)

# Full tiles between mixed ones: those on the right come first, then those on the left.
_BETWEEN = (
    "num_right = gl.cdiv(stop - full_end, BN)",
    "num_mixed = num_right + (full_start - first) // BN",
    "num_tiles = gl.maximum(num_mixed + (full_end - full_start) // BN, 1)",
)
_PLACE_BETWEEN = (
    "right = full_end + (num_right - 1 - i) * BN",
    "left = full_start - (i - num_right + 1) * BN",
    "full = full_end - (i - num_mixed + 1) * BN",
    "gl.maximum(gl.where(i < num_right, right, gl.where(i < num_mixed, left, full)), 0)",
)


@dataclass(frozen=True)
class KeyTiles:
    """Which tiles of keys a tile of queries sees.

    `lines` compute what is `returned`; `place` are statements and the expression that lead from number `i` to a tile's
    first key by the values of `placed_by`. `arguments` are those of the variant that the lines read, `reads` all names.
    """

    lines: tuple[str, ...]
    returned: tuple[str, ...]
    place: tuple[str, ...]
    placed_by: tuple[str, ...]
    arguments: tuple[str, ...]
    reads: frozenset[str]
    scheduled: bool = False

    def start_of(self, number: str) -> str:
        """The first key of a tile, as a kernel asks for it."""
        return f"{'scheduled' if self.scheduled else ''}_key_tile({number}, {', '.join(self.placed_by)}, BN)"


@dataclass(frozen=True)
class Work:
    """The function `_work`, which says what there is to do for a tile of queries.

    `counts_queries`: the number of a sequence's queries, num_queries, is not taken for q_len as it is. What lies behind
    the last sequence would read inputs by it, and may have more rows than these have room for.
    """

    names: tuple[str, ...]
    tiles: tuple[str, ...]
    counts_queries: bool

    @property
    def num_queries(self) -> str:
        """What kernels call the number of a sequence's queries."""
        return "num_queries" if self.counts_queries else "q_len"

    @property
    def returned(self) -> tuple[str, ...]:
        """What it says of each tile and its sequence, and of the tiles of keys."""
        return ("b", "h", "row0", "begin_q", self.num_queries, "begin_k", "num_keys", *self.tiles)

    @property
    def parameters(self) -> str:
        names = ("work_tile", *self.names)
        return ", ".join(f"{name}: gl.constexpr" if name.isupper() else name for name in names)

    def value(self, work_tile: str) -> str:
        """The call of it in a kernel."""
        return f"_work({', '.join((work_tile, *map(longest, self.names)))})"


def longest(name: str) -> str:
    """What a kernel calls a length where that of a sequence, which may be packed, has its name."""
    return _LONGEST.get(name, name)


def of_roles(sizes: Iterable[str]) -> str:
    """Sizes as a role calls them, which asks each tile for the lengths of its sequence."""
    return ", ".join(map(longest, sizes))


def work_of(facts: Facts, keys: KeyTiles | None, sizes: tuple[str, ...]) -> Work:
    """What `_work` takes, the scalars `sizes` among it, and returns; `keys` is None where nothing is masked."""
    counts = counts_queries_for_first_pair(facts)
    if keys is None:
        return Work((*sizes, "sequences", "BM"), (), counts)
    tiles = ("BM", "BN") if "BN" in keys.reads else ("BM",)
    return Work((*keys.arguments, *sizes, "sequences", *tiles), keys.returned, counts)


def key_tiles(facts: Facts) -> KeyTiles:
    """Which tiles there are, by the ends of the interval of keys that a query sees, else by a schedule."""
    if facts.uses_schedule:
        return _scheduled(facts)
    prologue = new_prologue(facts, dialect=GLUON, packs=True)
    limits, lower = loop_limits(facts, prologue), facts.keys.lower
    lines, place = (_BETWEEN, _PLACE_BETWEEN) if lower else (_DOWNWARDS, _PLACE_DOWNWARDS)
    placed_by = ("num_mixed", "num_right", "full_start", "full_end") if lower else ("num_tiles",)
    reads = prologue.reads.union(limits.reads, ["kv_heads"] if "kv_h" in prologue.reads else ())
    if is_shifted(facts, reads):
        reads.add("kv_len")
    return KeyTiles(
        lines=(*precision_of(reads), *prologue.lines, *limits.lines, *lines),
        returned=tuple(dict.fromkeys(("num_tiles", "num_mixed", *placed_by))),
        place=place,
        placed_by=placed_by,
        arguments=extra_arguments(facts.variant, reads - {"batch"}),
        reads=frozenset(reads),
    )


def precision_of(reads: Collection[str]) -> tuple[str, ...]:
    """Where a tanh bounds the tiles: these kernels' inputs have 16 bits, and no role needs to say so."""
    return ("PRECISE: gl.constexpr = False",) if "PRECISE" in reads else ()


def _scheduled(facts: Facts) -> KeyTiles:
    placed_by = ("num_mixed", "num_full", "row_tiles_ptr", "num_k_tiles")
    returned = ("num_tiles", *placed_by[:3])
    place = schedule_row(facts, "num_q_tiles", "(num_q_tiles - 1 - tile)", GLUON)
    lines = (
        "if cu_seqlens_q_ptr is None:",
        "    # The schedule says which tiles are the longest.",
        f"    tile = gl.load(counts_ptr + 3 * ({place}) + 2)",
        "    row0 = tile * BM",
        "else:",
        "    # There are fewer rows of it than slots.",
        "    tile = gl.minimum(tile, num_q_tiles - 1)",
        *packed_row(facts, "num_q_tiles", f"row = {schedule_row(facts, 'num_q_tiles', 'tile', GLUON)}", GLUON),
        f"{', '.join(returned)} = scheduled_keys(row, {', '.join(SCHEDULE)}, cu_seqlens_k_ptr, num_keys)",
    )
    return KeyTiles(
        lines=lines,
        returned=returned,
        place=(),
        placed_by=placed_by,
        arguments=SCHEDULE,
        reads=frozenset(),
        scheduled=True,
    )


def is_shifted(facts: Facts, reads: set[str]) -> bool:
    """Whether a position of queries is read that kv_len has a part in."""
    return facts.bottom_right and bool(reads & set(_POSITIONS))
