"""What the Hopper forward template needs to know of a variant.

Scores and masks come from the same functions as in the portable kernel. Which tiles of keys there are is asked by both
roles, the warp that loads and those that compute, so it is a function of its own: `_keys_of`. Its tiles are numbered,
the mixed ones first, and `_key_tile` finds the place of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from flashgen.codegen.forward import (
    LN2,
    LOG2E,
    SCHEDULE,
    Function,
    extra_arguments,
    limit_lines,
    longest_first,
    new_prologue,
    pairs,
    q_offset,
    schedule_row,
    unspecialized,
)
from flashgen.lang.bounds import KeyRange, key_range
from flashgen.lang.nodes import variables
from flashgen.lang.triton_emitter import level
from flashgen.spec.variant import Variant

_SIZES = ("heads", "kv_heads", "q_len", "kv_len", "head_dim")
_POSITIONS = ("q", "q_first", "q_last")

# The tiles of keys from the last one down: mixed tiles, then full ones.
_DOWNWARDS = (
    "num_tiles = gl.maximum(gl.cdiv(stop, BN), 1)",
    "num_mixed = num_tiles - full_end // BN",
)
_PLACE_DOWNWARDS = ("start = (num_tiles - 1 - i) * BN",)

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
    "start = gl.maximum(gl.where(i < num_right, right, gl.where(i < num_mixed, left, full)), 0)",
)

_PLACE_SCHEDULED = (
    "# Mixed tiles stand at the front of the row, full ones at its end; an empty row gets a tile that it does not see.",
    "place = gl.where(i < num_mixed, i, num_k_tiles - 1 - (i - num_mixed))",
    "start = gl.load(row_tiles_ptr + place, mask=i < num_mixed + num_full, other=0) * BN",
)


@dataclass(frozen=True)
class KeyTiles:
    """Which tiles of keys a tile of queries sees: the functions `_keys_of` and `_key_tile`.

    `lines` compute what is `returned`; `place` are the statements that lead from number `i` to the first key `start`
    by the values of `placed_by`. `arguments` are those of the variant that `_keys_of` takes, `names` all of them.
    """

    lines: tuple[str, ...]
    returned: tuple[str, ...]
    place: tuple[str, ...]
    placed_by: tuple[str, ...]
    names: tuple[str, ...]
    arguments: tuple[str, ...]
    positions: frozenset[str]
    helpers: frozenset[str]

    @property
    def parameters(self) -> str:
        return ", ".join(f"{name}: gl.constexpr" if name.isupper() else name for name in self.names)

    @property
    def call(self) -> str:
        return f"{', '.join(self.returned)} = _keys_of({', '.join(self.names)})"

    @property
    def start(self) -> str:
        return f"_key_tile(i, {', '.join(self.placed_by)}, BN)"


@dataclass(frozen=True)
class HopperView:
    """The holes of the Hopper forward kernel, as `ForwardView` has them; `keys` is None where nothing is masked.

    `arguments` are the kernel's beyond those that every variant has, `sizes` the scalars among the others; those of the
    two roles end in `_arguments` and `_sizes`. `reads` are the names that the consumers read.
    """

    scaled: bool
    score: Function | None
    score_call: str
    score_reads_k: bool
    mask: Function | None
    logit: str
    shown: str
    clamps_k: bool
    keys: KeyTiles | None
    start: str
    longest_first: bool
    reads: frozenset[str]
    q_offset: str
    prologue: tuple[str, ...]
    epilogue: tuple[str, ...]
    row_shift: bool
    sink: bool
    arguments: tuple[str, ...]
    sizes: tuple[str, ...]
    consumer_sizes: tuple[str, ...]
    producer_arguments: tuple[str, ...]
    producer_sizes: tuple[str, ...]
    unspecialized: tuple[str, ...]
    helpers: tuple[str, ...]
    log2e: str = LOG2E
    ln2: str = LN2


def hopper_view(variant: Variant) -> HopperView:
    """Work the holes out."""
    prologue = new_prologue(variant, approximate=variant.approximate)
    ranges = key_range(variant.mask)
    found = pairs(variant, ranges, prologue)
    keys = None if found.mask is None else _key_tiles(variant, ranges)
    epilogue = prologue.fork()
    row_shift: list[str] = []
    if found.row is not None:
        text = epilogue.inline(found.row)
        along_rows = f"gl.convert_layout(gl.reshape({text}, [ROWS]), row_layout)"
        row_shift = [f"row_shift = {along_rows if level(found.row) else text}"]
    reads = prologue.free | found.free | ({"sinks_ptr"} if variant.sink else set())
    asked = {"kv_len"} if keys is None else set(keys.names)
    free = reads | asked
    extra = tuple(name for name in extra_arguments(variant, free) if name != "batch")
    spread = "gl.zeros([ROWS, BN], gl.float32, qk_layout) + " if found.spread else ""
    helpers = prologue.helpers | (set() if keys is None else keys.helpers)
    scheduled = not ranges.closed
    computes = {*free, *(["kv_heads"] if "kv_h" in free else [])}
    if "kv_len" in found.shown or (variant.align == "bottom_right" and free & set(_POSITIONS)):
        computes.add("kv_len")
    return HopperView(
        scaled=found.score is None,
        score=found.score,
        score_call="" if found.score is None else spread + found.score.call,
        score_reads_k=found.score_reads_k,
        mask=found.mask,
        logit=found.logit,
        shown=found.shown,
        clamps_k=found.clamps_k,
        keys=keys,
        start="(num_tiles - 1 - i) * BN" if keys is None else keys.start,
        longest_first=longest_first(ranges),
        reads=frozenset(reads),
        q_offset=q_offset(variant),
        prologue=_in_gluon(prologue.lines),
        epilogue=_in_gluon((*epilogue.lines, *row_shift)),
        row_shift=bool(row_shift),
        sink=variant.sink,
        arguments=(*SCHEDULE, *extra) if scheduled else extra,
        sizes=_sizes({*computes, "kv_heads"}),
        consumer_sizes=_sizes(computes),
        producer_arguments=() if keys is None else keys.arguments,
        producer_sizes=_sizes({"kv_heads", *asked}),
        unspecialized=tuple(dict.fromkeys((*unspecialized(variant, free, scheduled), "batch", "head_group"))),
        helpers=tuple(sorted(helpers)),
    )


def _in_gluon(lines: Iterable[str]) -> tuple[str, ...]:
    """Statements of the emitter, written for Triton, by the names that Gluon has for the same operations."""
    return tuple(re.sub(r"\btl\.(?!sigmoid)", "gl.", line) for line in lines)


def _sizes(used: set[str]) -> tuple[str, ...]:
    """Scalars in the order in which the kernel takes them: those that it always reads, and those that are used."""
    names = ("scale", "batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "head_group")
    return tuple(name for name in names if name in used or name in ("batch", "heads", "q_len", "head_group"))


def _key_tiles(variant: Variant, ranges: KeyRange) -> KeyTiles:
    if not ranges.closed:
        return _scheduled(variant)
    prologue = new_prologue(variant)
    limits = limit_lines(variant, ranges, prologue)
    lines, place = (_BETWEEN, _PLACE_BETWEEN) if ranges.lower else (_DOWNWARDS, _PLACE_DOWNWARDS)
    placed_by = ("num_mixed", "num_right", "full_start", "full_end") if ranges.lower else ("num_tiles",)
    free = prologue.free | {"kv_len"}
    positions = free & set(_POSITIONS)
    extra = extra_arguments(variant, free)
    used = free | ({"q_len"} if positions else set())
    group = [name for name in ("b", "h", "kv_h") if name in used]
    sizes = [name for name in _SIZES if name in used]
    return KeyTiles(
        lines=_in_gluon((*prologue.lines, *limits, *lines)),
        returned=tuple(dict.fromkeys(("num_tiles", "num_mixed", *placed_by))),
        place=place,
        placed_by=placed_by,
        names=("row0", *group, *extra, *sizes, "BM", "BN"),
        arguments=extra,
        positions=frozenset(positions),
        helpers=frozenset(prologue.helpers),
    )


def _scheduled(variant: Variant) -> KeyTiles:
    used = variables(variant.mask)
    by = [name for name, wanted in (("b", {"b"}), ("h", {"h", "kv_h"})) if used & wanted]
    lines = (
        f"row = {schedule_row(variant, 'gl.cdiv(q_len, BM)', '(row0 // BM)')}",
        "num_mixed = gl.load(counts_ptr + 2 * row)",
        "num_full = gl.load(counts_ptr + 2 * row + 1)",
        "num_tiles = gl.maximum(num_mixed + num_full, 1)",
        "row_tiles_ptr = tiles_ptr + row * num_k_tiles",
    )
    placed_by = ("num_mixed", "num_full", "row_tiles_ptr", "num_k_tiles")
    sizes = [*(["heads"] if len(by) == 2 else []), *(["q_len"] if by else [])]
    return KeyTiles(
        lines=_in_gluon(lines),
        returned=("num_tiles", *placed_by[:3]),
        place=_PLACE_SCHEDULED,
        placed_by=placed_by,
        names=("row0", *by, *SCHEDULE, *sizes, "BM"),
        arguments=SCHEDULE,
        positions=frozenset(),
        helpers=frozenset(),
    )
