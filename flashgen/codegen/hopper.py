"""What the Hopper forward template needs to know of a variant.

Scores and masks come from the same functions as in the portable kernel. Which tiles of keys there are is asked by both
roles, the warp that loads and those that compute, so it is a function of its own: `_keys_of`. Its tiles are numbered,
the mixed ones first, and `_key_tile` finds the place of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from flashgen.codegen.forward import LN2, LOG2E, ForwardView, extra_arguments, new_prologue, q_offset, unspecialized
from flashgen.codegen.limits import SCHEDULE, limit_lines, longest_first, schedule_row
from flashgen.codegen.pairs import Function, Given, Pairs, pairs
from flashgen.lang.bounds import KeyRange, increasing_in_q, key_range
from flashgen.lang.log2 import K, logits, tilted
from flashgen.lang.nodes import Expr, Gather, op, substitute, walk
from flashgen.lang.tiles import CORNERS
from flashgen.lang.triton_emitter import COL, Prologue, level
from flashgen.spec.variant import Variant

_SIZES = ("heads", "kv_heads", "q_len", "kv_len", "head_dim")
_POSITIONS = ("q", "q_first", "q_last")

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

_PLACE_SCHEDULED = (
    "# Mixed tiles stand at the front of the row, full ones at its end; an empty row gets a tile that it does not see.",
    "place = gl.where(i < num_mixed, i, num_k_tiles - 1 - (i - num_mixed))",
    "gl.load(row_tiles_ptr + place, mask=i < num_mixed + num_full, other=0) * BN",
)


@dataclass(frozen=True)
class KeyTiles:
    """Which tiles of keys a tile of queries sees.

    `lines` compute what is `returned`; `place` are statements and the expression that lead from number `i` to a tile's
    first key by the values of `placed_by`. `arguments` are those of the variant that the lines read, `free` all names.
    """

    lines: tuple[str, ...]
    returned: tuple[str, ...]
    place: tuple[str, ...]
    placed_by: tuple[str, ...]
    arguments: tuple[str, ...]
    free: frozenset[str]
    helpers: frozenset[str]
    scheduled: bool = False


@dataclass(frozen=True)
class Columns:
    """What scores and masks read of each key alone: statements that load it, for the score and for the mask besides.

    `given` has the names, `free` what the statements read.
    """

    given: Given
    of_score: tuple[str, ...]
    of_mask: tuple[str, ...]
    free: frozenset[str]
    helpers: frozenset[str]

    def used(self, function: Function | None) -> list[str]:
        """The names that a function takes."""
        return [] if function is None else [name for name in self.given.values() if name in function.body.free]


@dataclass(frozen=True)
class Work:
    """The function `_work`, which says what there is to do for a tile of queries."""

    names: tuple[str, ...]
    returned: tuple[str, ...]

    @property
    def parameters(self) -> str:
        return ", ".join(f"{name}: gl.constexpr" if name.isupper() else name for name in ("index", *self.names))

    def value(self, index: str) -> str:
        return f"_work({', '.join((index, *self.names))})"


@dataclass(frozen=True)
class Tilt:
    """What scores that are dot products and a term affine in k add, as texts.

    `per_key` is by how much from one key to the next, in units of the dot products; `shift` how much for the first key
    of a tile, in units of log2.
    """

    per_key: str
    shift: str


@dataclass(frozen=True)
class HopperView:
    """The holes of the Hopper forward kernel, as `ForwardView` has them; `keys` is None where nothing is masked.

    `uneven`: tiles of queries differ in length, so that programs take the next one when they are done; `grouped`: the
    longest come first, in groups of heads. `arguments` are
    the kernel's beyond those that every variant has, `sizes` the scalars among the others; those of the two roles have
    their name in front. `reads` are the names that the consumers read, `loaded` what the producer takes of its work.
    """

    scaled: bool
    tilt: Tilt | None
    score: Function | None
    score_call: str
    score_reads_k: bool
    columns: Columns
    mask: Function | None
    logit: str
    shown: str
    clamps_k: bool
    keys: KeyTiles | None
    work: Work
    start: str
    loaded: tuple[str, ...]
    grouped: bool
    uneven: bool
    reads: frozenset[str]
    q_offset: str
    prologue: tuple[str, ...]
    epilogue: tuple[str, ...]
    row_shift: bool
    sink: bool
    arguments: tuple[str, ...]
    sizes: tuple[str, ...]
    consumer_arguments: tuple[str, ...]
    consumer_sizes: tuple[str, ...]
    producer_arguments: tuple[str, ...]
    producer_sizes: tuple[str, ...]
    unspecialized: tuple[str, ...]
    helpers: tuple[str, ...]
    log2e: str = LOG2E
    ln2: str = LN2

    def spread_columns(self, masked: bool) -> list[str]:
        """What is loaded for each key and then read with all pairs of its column."""
        return list(dict.fromkeys([*self.columns.used(self.score), *(self.columns.used(self.mask) if masked else ())]))

    @property
    def functions(self) -> tuple[Function, ...]:
        """Those that the kernel calls."""
        return tuple(f for f in (self.score, self.mask) if f is not None)


def hopper_view(variant: Variant, portable: ForwardView) -> HopperView:
    """Work the holes out. What the portable kernel's functions say goes by their names, what differs by others."""
    prologue = new_prologue(variant, approximate=variant.approximate)
    ranges = key_range(variant.mask)
    found = pairs(variant, ranges, prologue)
    columns = _columns(variant, prologue)
    if columns.given:
        found = pairs(variant, ranges, prologue, columns.given)
    score, mask = _named(found.score, portable.score), _named(found.mask, portable.mask)
    shown = found.shown if mask is None or found.mask is None else found.shown.replace(found.mask.call, mask.call)
    found = replace(found, score=score, mask=mask, shown=shown)
    tilt = _tilt(variant, prologue)
    if tilt is not None:
        found = replace(found, score=None, spread=False)
    keys = None if found.mask is None else _key_tiles(variant, ranges)
    epilogue = prologue.fork()
    row_shift: list[str] = []
    if found.row is not None:
        text = epilogue.inline(found.row)
        along_rows = f"gl.convert_layout(gl.reshape({text}, [ROWS]), row_layout)"
        constant = f"gl.zeros([ROWS], gl.float32, row_layout) + {text}"
        row_shift = [f"row_shift = {along_rows if level(found.row) else constant}"]
    reads = prologue.free | found.free | columns.free | ({"sinks_ptr"} if variant.sink else set())
    ordered, uneven = longest_first(ranges) or not ranges.closed, keys is not None and not _is_window(ranges)
    asked = {"kv_len"} if keys is None else {*keys.free}
    asked |= {"head_group"} if ordered else set()
    computes = reads | asked
    computes |= {"kv_len"} if "kv_len" in found.shown or _is_shifted(variant, reads) else set()
    computes |= {"kv_heads"} if "kv_h" in reads else set()
    extra = tuple(name for name in extra_arguments(variant, computes) if name != "batch")
    work = _work(keys, _sizes(asked))
    start = "(num_tiles - 1 - i) * BN" if keys is None else f"_key_tile(i, {', '.join(keys.placed_by)}, BN)"
    used = {"b", "h", "row0", "num_tiles", *(keys.placed_by if keys else ())}
    read = SCHEDULE + extra if not ranges.closed else extra
    return HopperView(
        scaled=found.score is None,
        tilt=tilt,
        score=found.score,
        score_call=_score_call(found),
        score_reads_k=tilt is not None or found.score_reads_k or bool(columns.of_score),
        columns=columns,
        mask=found.mask,
        logit=found.logit,
        shown=found.shown,
        clamps_k=found.clamps_k,
        keys=keys,
        work=work,
        start=start,
        loaded=tuple(name if name in used else "_" for name in work.returned),
        grouped=ordered,
        uneven=uneven,
        reads=frozenset(reads),
        q_offset=q_offset(variant),
        prologue=in_gluon(prologue.lines),
        epilogue=in_gluon((*epilogue.lines, *row_shift)),
        row_shift=bool(row_shift),
        sink=variant.sink,
        arguments=("counter_ptr", *read) if uneven else read,
        sizes=_sizes({*computes, "scale", "kv_heads", "kv_len", "head_dim", "v_head_dim"}),
        consumer_arguments=read,
        consumer_sizes=_sizes(computes),
        producer_arguments=(*(["counter_ptr"] if uneven else []), *(keys.arguments if keys else ())),
        producer_sizes=_sizes({"kv_heads", *asked}),
        unspecialized=tuple(
            dict.fromkeys(
                (*unspecialized(variant, computes, not ranges.closed), "batch", *(["head_group"] if ordered else []))
            )
        ),
        helpers=tuple(
            sorted(
                prologue.helpers
                | columns.helpers
                | (keys.helpers if keys else frozenset())
                | ({"_announce"} if uneven else set())
            )
        ),
    )


def _columns(variant: Variant, prologue: Prologue) -> Columns:
    """Loads that vary along keys alone. A thread that makes them for its pairs would make those of a quarter of all."""
    per_tile, given = prologue.fork(), dict[Expr, str]()
    scores = logits(variant.score, variant.mask)
    ends = []
    for expr in (scores.pair, variant.mask):
        for node in walk(expr):
            if isinstance(node, Gather) and level(node) == COL and node not in given:
                given[node] = per_tile.name(node)
        ends.append(len(per_tile.lines))
    # Another name than that of the positions in the layout of the scores: a variable keeps its layout in a loop.
    lines = tuple(re.sub(r"\bk\b", "keys", line) for line in in_gluon(per_tile.lines))
    free = frozenset(per_tile.free) if given else frozenset[str]()
    return Columns(given, lines[: ends[0]], lines[ends[0] :], free, frozenset(per_tile.helpers))


def _tilt(variant: Variant, prologue: Prologue) -> Tilt | None:
    found = tilted(logits(variant.score, variant.mask).pair)
    if found is None:
        return None
    prologue.name(found.scaled, "qk_scale")
    shift = re.sub(r"\bk_first\b", "start", prologue.inline(substitute(found.column, {K: CORNERS["k"][0]})))
    per_key = prologue.inline(op("truediv", found.per_key, found.scaled))
    return Tilt(*in_gluon((per_key, shift)))


def _named(function: Function | None, portable: Function | None) -> Function | None:
    if function is None or (portable is not None and function.says_the_same(portable)):
        return function
    return replace(function, name=f"_hopper{function.name}")


def _score_call(found: Pairs) -> str:
    if found.score is None:
        return ""
    return ("gl.zeros([ROWS, BN], gl.float32, qk_layout) + " if found.spread else "") + found.score.call


def _is_window(ranges: KeyRange) -> bool:
    """Whether both ends of the range of keys move with the query."""
    return ranges.closed and all(
        end is not None and increasing_in_q(end) == 1 for end in (ranges.lower_bound, ranges.upper_bound)
    )


def _is_shifted(variant: Variant, reads: set[str]) -> bool:
    return variant.align == "bottom_right" and bool(reads & set(_POSITIONS))


def in_gluon(lines: Iterable[str]) -> tuple[str, ...]:
    """Statements of the emitter, written for Triton, by the names that Gluon has for the same operations."""
    return tuple(re.sub(r"\btl\.(?!sigmoid)", "gl.", line) for line in lines)


def _sizes(used: set[str]) -> tuple[str, ...]:
    """Scalars in the order in which the kernel takes them: those that it always reads, and those that are used."""
    names = ("scale", "batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "head_group")
    return tuple(name for name in names if name in used or name in ("batch", "heads", "q_len"))


def _work(keys: KeyTiles | None, sizes: tuple[str, ...]) -> Work:
    if keys is None:
        return Work((*(name for name in sizes if name != "kv_len"), "BM"), ("b", "h", "row0"))
    tiles = ("BM", "BN") if any("BN" in line for line in keys.lines) else ("BM",)
    return Work((*keys.arguments, *sizes, *tiles), ("b", "h", "row0", *keys.returned))


def _key_tiles(variant: Variant, ranges: KeyRange) -> KeyTiles:
    if not ranges.closed:
        return _scheduled(variant)
    prologue = new_prologue(variant)
    limits = limit_lines(variant, ranges, prologue)
    lines, place = (_BETWEEN, _PLACE_BETWEEN) if ranges.lower else (_DOWNWARDS, _PLACE_DOWNWARDS)
    placed_by = ("num_mixed", "num_right", "full_start", "full_end") if ranges.lower else ("num_tiles",)
    free = prologue.free | ({"kv_heads"} if "kv_h" in prologue.free else set())
    if any("kv_len" in line for line in limits) or _is_shifted(variant, free):
        free.add("kv_len")
    return KeyTiles(
        lines=in_gluon((*prologue.lines, *limits, *lines)),
        returned=tuple(dict.fromkeys(("num_tiles", "num_mixed", *placed_by))),
        place=place,
        placed_by=placed_by,
        arguments=tuple(name for name in extra_arguments(variant, free) if name != "batch"),
        free=frozenset(free),
        helpers=frozenset(prologue.helpers),
    )


def _scheduled(variant: Variant) -> KeyTiles:
    lines = (
        f"tile = tl.load(counts_ptr + 3 * ({schedule_row(variant, 'num_q_tiles', 'place')}) + 2)",
        "row0 = tile * BM",
        f"row = {schedule_row(variant, 'num_q_tiles', 'tile')}",
        "num_mixed = tl.load(counts_ptr + 3 * row)",
        "num_full = tl.load(counts_ptr + 3 * row + 1)",
        "num_tiles = tl.maximum(num_mixed + num_full, 1)",
        "row_tiles_ptr = tiles_ptr + row * num_k_tiles",
    )
    placed_by = ("num_mixed", "num_full", "row_tiles_ptr", "num_k_tiles")
    return KeyTiles(
        lines=in_gluon(lines),
        returned=("num_tiles", *placed_by[:3]),
        place=_PLACE_SCHEDULED,
        placed_by=placed_by,
        arguments=SCHEDULE,
        free=frozenset(),
        helpers=frozenset(),
        scheduled=True,
    )
