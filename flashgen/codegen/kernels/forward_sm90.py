"""What the Hopper forward template needs to know of a variant.

Scores and masks come from the same functions as in the portable kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from flashgen.analysis.facts import Facts
from flashgen.analysis.levels import level
from flashgen.codegen.arguments import (
    PACKED_SIZES,
    PAGE_SIZES,
    dropout_reads,
    new_prologue,
    q_offset,
    unspecialized,
)
from flashgen.codegen.kernel_text import KernelText
from flashgen.codegen.pairs import NOTHING, Function, Pairs, named_apart, pairs
from flashgen.codegen.sm90.affine import AffineBias, affine_bias
from flashgen.codegen.sm90.columns import Columns, columns_of
from flashgen.codegen.sm90.keys import KeyTiles, Work, is_shifted, key_tiles, work_of
from flashgen.codegen.sm90.masks import Mixed, mixed
from flashgen.codegen.sm90.pair_rows import PairRows, pair_rows_of
from flashgen.codegen.sm90.roles import PLACES, Role, roles_of, sizes_of
from flashgen.codegen.sm90.uniform import KeyTileTest, UniformTiles, key_tile_test, uniform_score
from flashgen.emit.dialects import GLUON
from flashgen.emit.fragments import Fragment
from flashgen.emit.prologue import Prologue
from flashgen.lang.nodes import TRUE, Expr
from flashgen.spec.variant import Variant


@dataclass(frozen=True)
class ForwardSm90View:
    """The holes of the Hopper forward kernel, as `ForwardView` has them; `keys` is None where nothing is masked.

    `uneven`: tiles of queries differ in length, so that programs take the next one when they are done; `grouped`: the
    longest come first, in groups of heads. `reads` are the names that the consumers read, `loaded` what the producer
    takes of its work; `factor` is as in `Pairs`. `pair_rows`: what they read for each pair in rows.
    """

    scaled: bool
    affine: AffineBias | None
    score: Function | None
    score_call: str
    pair_rows: PairRows | None
    columns: Columns
    logit: str
    factor: str
    mixed: Mixed
    uniform: UniformTiles | None
    uniform_test: KeyTileTest | None
    clamps_k: bool
    keys: KeyTiles | None
    work: Work
    loaded: tuple[str, ...]
    grouped: bool
    uneven: bool
    reads: frozenset[str]
    reads_kv_len: bool
    q_offset: str
    prologue: tuple[str, ...]
    epilogue: tuple[str, ...]
    natural: bool
    without_fma: bool
    row_shift: bool
    sink: bool
    dropout: bool
    kernel: Role
    consumer: Role
    producer: Role
    unspecialized: tuple[str, ...]

    @property
    def softmax_function(self) -> str:
        """The function of the device that makes a step of the softmax."""
        if self.affine:
            return "softmax_step_shifted"
        if self.natural:
            return "softmax_step_natural"
        return "softmax_step_scaled" if self.scaled or self.factor else "softmax_step"

    @property
    def softmax(self) -> str:
        """The call of it."""
        factor = ", qk_scale" if self.scaled else ", FACTOR" if self.factor else ""
        return f"{self.softmax_function}({self.logit}, m, l{factor}{', shift' if self.affine else ''})"

    @property
    def start(self) -> str:
        """The first key of tile i."""
        return self.start_of("i")

    def start_of(self, number: str) -> str:
        """The first key of a tile."""
        return _start_of(self.keys, number)

    @property
    def holds_q(self) -> bool:
        """Whether Q may stay in registers for full tiles: only where these have a loop of their own."""
        return self.keys is not None

    @property
    def keys_count_queries(self) -> bool:
        """Whether which tiles of keys there are depends on q_len where that is not the number of queries itself."""
        if self.keys is None or not self.work.counts_queries:
            return False
        return not self.keys.reads.isdisjoint({"q_len", "q", "q_last", *(["q_first"] if self.q_offset else [])})

    def logits_of(self, kind: str) -> str:
        """The logits of a tile of this kind, "mixed", "full" or "uniform", where there is a score."""
        if self.uniform and kind == "uniform":
            return self.uniform.logits(_SPREAD, k_first="start")
        return self.score_call

    def reads_k(self, kind: str) -> bool:
        """Whether the score of a tile of this kind reads the positions of its keys."""
        score = self._score_of(kind)
        return score is not None and "k" in score.body.reads

    def reads_start(self, kind: str) -> bool:
        """Whether a tile of this kind reads where it stands."""
        by_place = self.affine is not None or bool(self.columns.of_score.lines) or self.dropout
        return kind != "full" or by_place or self.reads_k(kind)

    def _score_of(self, kind: str) -> Function | None:
        return self.uniform.score if self.uniform and kind == "uniform" else self.score

    def spread_columns(self, kind: str) -> list[str]:
        """What is loaded for each key and then read with all pairs of its column.

        In full tiles also what the mask reads of that which the score's statements load: a variable keeps its layout in
        a loop.
        """
        loaded = self.columns.of_score.defines
        of_mask = [name for name in self.columns.used(self.mixed.mask) if kind == "mixed" or name in loaded]
        return list(dict.fromkeys([*self.columns.used(self.score), *of_mask]))

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions that the kernel calls."""
        uniform = self.uniform.functions if self.uniform else ()
        return (*(f for f in (self.score, self.mixed.mask) if f is not None), *uniform)


def forward_sm90_view(facts: Facts, known: Sequence[Function]) -> ForwardSm90View:
    """Work the holes out; `known` are the functions that the kernels before this one define."""
    variant, scheduled = facts.variant, facts.uses_schedule
    prologue = new_prologue(facts, approximate=variant.approximate, dialect=GLUON, packs=True)
    pair_rows = None if _has_uniform(facts) else pair_rows_of(facts, prologue, "qk_layout")
    found, shown, columns, affine, masked = _scores(facts, prologue, pair_rows, known)
    keys = None if variant.mask is TRUE else key_tiles(facts)
    uniform = _uniform(facts, found, prologue, columns, known)
    epilogue = (uniform.prologue if uniform else prologue).fork()
    row_shift = [] if found.row is None else [_row_shift(found.row, epilogue)]
    reads = _reads(variant, prologue, found, columns, uniform)
    ordered, uneven = facts.longest_first or scheduled, keys is not None and not facts.is_window
    asked = {"kv_len", *(keys.reads if keys else ()), *(["head_group"] if ordered else [])}
    computes = reads | asked
    reads_kv_len = keys is None or uniform is not None or is_shifted(facts, reads) or found.clamps_k
    reads_kv_len |= "kv_len" in reads | {*shown.reads}
    computes |= {"kv_heads"} if "kv_h" in reads else set()
    kernel, consumer, producer = roles_of(variant, keys, computes, asked, scheduled=scheduled, uneven=uneven)
    work = work_of(facts, keys, sizes_of(asked | PLACES))
    changing = (*unspecialized(variant, computes, scheduled), "batch", *(asked & {"head_group"}))
    changing += (*PACKED_SIZES, *PAGE_SIZES)
    used = {*work.returned} - {"b", *(set(keys.returned) - {"num_tiles", *keys.placed_by} if keys else ())}
    return ForwardSm90View(
        scaled=found.score is None,
        affine=affine,
        score=found.score,
        score_call=_score_call(found, pair_rows),
        pair_rows=pair_rows,
        columns=columns,
        logit=found.logit,
        factor=found.factor,
        mixed=masked,
        uniform=uniform,
        uniform_test=key_tile_test(uniform, keys, _start_of(keys, "i")) if uniform else None,
        clamps_k=found.clamps_k,
        keys=keys,
        work=work,
        loaded=tuple(name if name in used else "_" for name in work.returned),
        grouped=ordered,
        uneven=uneven,
        reads=frozenset(reads),
        reads_kv_len=reads_kv_len or bool(columns.given) or pair_rows is not None,
        q_offset=q_offset(facts),
        prologue=(*prologue.lines, *(uniform.lines if uniform else ())),
        epilogue=(*epilogue.lines, *row_shift),
        natural=found.natural,
        without_fma=facts.logits.without_fma,
        row_shift=bool(row_shift),
        sink=variant.sink,
        dropout=variant.dropout is not None,
        kernel=kernel,
        consumer=consumer,
        producer=producer,
        unspecialized=tuple(dict.fromkeys(changing)),
    )


class _Scores(NamedTuple):
    """How consumers get from dot products to logits, by the functions of this kernel.

    `shown` is what a tile that needs the mask keeps, as a whole; `mixed` has it by its parts.
    """

    found: Pairs
    shown: Fragment
    columns: Columns
    affine: AffineBias | None
    mixed: Mixed


def _scores(facts: Facts, prologue: Prologue, pair_rows: PairRows | None, known: Sequence[Function]) -> _Scores:
    """Work that out; what it needs in front of the loop goes to `prologue`."""
    in_rows = pair_rows.given if pair_rows else NOTHING
    found = pairs(facts, prologue, in_rows, apart=True)
    columns = columns_of(facts, prologue)
    given = {**columns.given, **in_rows}
    if columns.given:
        found = pairs(facts, prologue, given, apart=True)
    suffixes = ("_of_loaded", "_of_loaded_by_query") if in_rows else ("_sm90",)
    score = named_apart(found.score, known, *suffixes)
    affine = affine_bias(facts, prologue)
    found = replace(found, score=score) if affine is None else replace(found, score=None, spread=False)
    masked = mixed(facts, found, prologue, given, known)
    return _Scores(replace(found, mask=masked.mask), found.shown, columns, affine, masked)


def _uniform(
    facts: Facts, found: Pairs, prologue: Prologue, columns: Columns, known: Sequence[Function]
) -> UniformTiles | None:
    """Tiles of keys all of whose pairs read at one place, where there are enough of them."""
    if found.score is None or not _has_uniform(facts):
        return None
    return uniform_score(facts, prologue, known, along_queries=False, pair=found.pair, given=columns.given)


def _has_uniform(facts: Facts) -> bool:
    return facts.uniform is not None and facts.uniform.share > _WORTHWHILE


def _reads(
    variant: Variant, prologue: Prologue, found: Pairs, columns: Columns, uniform: UniformTiles | None
) -> set[str]:
    """What consumers read for the scores of a tile."""
    reads = prologue.reads | found.reads | columns.reads | ({"sinks_ptr"} if variant.sink else set())
    return reads | dropout_reads(variant) | (uniform.reads - {"k_first", "k_last"} if uniform else set())


def _row_shift(row: Expr, epilogue: Prologue) -> str:
    """A statement for what is left out of the logits of a row."""
    text = epilogue.inline(row)
    if level(row):
        return f"row_shift = gl.convert_layout(gl.reshape({text}, [ROWS]), row_layout)"
    return f"row_shift = gl.zeros([ROWS], gl.float32, row_layout) + {text}"


def _start_of(keys: KeyTiles | None, number: str) -> str:
    return f"(num_tiles - 1 - {number}) * BN" if keys is None else keys.start_of(number)


def _score_call(found: Pairs, pair_rows: PairRows | None) -> str:
    if found.score is None:
        return ""
    call = found.score.call_with(pair_rows.values if pair_rows else {})
    return _SPREAD + call if found.spread else call


# From which share of tiles on a loop of their own pays.
_WORTHWHILE = 0.25
_SPREAD = "gl.zeros([ROWS, BN], gl.float32, qk_layout) + "


FORWARD_SM90 = KernelText(
    "forward_sm90",
    "out and lse, for Hopper",
    lambda views: forward_sm90_view(views.facts, views.functions),
)
