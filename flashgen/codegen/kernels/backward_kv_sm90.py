"""What the Hopper template of the kernel for dK, dV and parts of dQ needs to know of a variant.

Scores and their derivatives come from the same functions as in the portable kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flashgen.analysis.facts import Facts
from flashgen.analysis.levels import ROW
from flashgen.analysis.reads import counts_queries
from flashgen.codegen.arguments import (
    DROPOUT,
    PACKED_SIZES,
    ROW_SCHEDULE,
    dropout_reads,
    extra_arguments,
    new_prologue,
    q_offset,
    unspecialized,
)
from flashgen.codegen.backward import ScoreView, score_function
from flashgen.codegen.kernel_text import KernelText
from flashgen.codegen.limits import schedule_row
from flashgen.codegen.pairs import NOTHING, Function, named_apart
from flashgen.codegen.sm90.keys import of_roles
from flashgen.codegen.sm90.learned import LearnedSm90, learned_sm90
from flashgen.codegen.sm90.pair_rows import PairRows, pair_rows_of
from flashgen.codegen.sm90.queries import QueryTiles, query_tiles
from flashgen.codegen.sm90.roles import sizes_of
from flashgen.codegen.sm90.rows import SeenRows, seen_rows_of
from flashgen.codegen.sm90.uniform import UniformTiles, uniform_score
from flashgen.emit.dialects import GLUON
from flashgen.lang.nodes import TRUE
from flashgen.lang.traversal import variables
from flashgen.lang.variables import Q_START


@dataclass(frozen=True)
class BackwardKvSm90View(ScoreView):
    """The holes of the Hopper kernel for dK, dV and parts of dQ, of scores as `BackwardKvView` has them.

    `sizes` are the scalars among the arguments of every variant. `reads` are the names that the consumers read.
    `persistent`: programs take one tile of keys after the other, else one each. `plain_mask`: all there is to the
    variant is a mask of positions that leaves each key an interval of queries. `holds_v`: full tiles leave registers
    for V where dQ is made elsewhere. `counts_queries`: where a tensor is read outside the loops over tiles depends on
    the number of queries. `rank` is the text for where the schedule says which tile of keys has the rank `place` in its
    head, the longest first, if tiles may come in this order; `ranks_batch`: it differs from one batch element to the
    next. `pair_rows`: what they read for each pair in rows. They, `learned` and `uniform` are for heads that are
    not wide.
    """

    seen: SeenRows
    clamps_q: bool
    queries: QueryTiles
    longest_first: bool
    rank: str
    ranks_batch: bool
    persistent: bool
    holds_v: bool
    plain_mask: bool
    counts_queries: bool
    sizes: tuple[str, ...]
    pair_rows: PairRows | None
    learned: LearnedSm90 | None
    uniform: UniformTiles | None

    @property
    def own_arguments(self) -> tuple[str, ...]:
        """`arguments` and, in front of them, where the gradients of learned inputs are added up."""
        return (*(self.learned.pointers if self.learned else ()), *self.arguments)

    @property
    def producer_sizes(self) -> tuple[str, ...]:
        """Of `sizes` those that say which tiles there are."""
        return tuple(name for name in self.sizes if name in {*_PLACES, "num_rows", "by_rank", *self.queries.names})

    @property
    def consumer_sizes(self) -> tuple[str, ...]:
        return tuple(name for name in self.sizes if name != "by_rank")

    of_roles = staticmethod(of_roles)

    @property
    def dk_arguments(self) -> tuple[str, ...]:
        """Of `arguments` those of the consumer that makes dK of wide heads."""
        return (*self.queries.arguments, *(name for name in DROPOUT if name in self.arguments))

    @property
    def dk_sizes(self) -> tuple[str, ...]:
        """Of `sizes` those of the consumer that makes dK of wide heads."""
        return tuple(name for name in self.sizes if name in {"scale", *_PLACES, *self.queries.names})

    @property
    def dv_sizes(self) -> tuple[str, ...]:
        """Of `sizes` those of the consumer that makes dV of wide heads."""
        return tuple(name for name in self.sizes if name != "num_rows")

    @property
    def own_reads(self) -> frozenset[str]:
        """`reads` and what `learned` and `uniform` read."""
        return self.reads.union(*(part.reads for part in (self.learned, self.uniform) if part is not None))

    @property
    def wide(self) -> BackwardKvSm90View:
        """The view of the kernel for wide heads, which has a program for each tile, in their order."""
        sizes, unspecialized = (
            tuple(name for name in names if name != "by_rank") for names in (self.sizes, self.unspecialized)
        )
        return replace(self, rank="", sizes=sizes, unspecialized=unspecialized)

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions that the kernel calls."""
        uniform = self.uniform.functions if self.uniform else ()
        learned = self.learned.functions if self.learned else ()
        return (*(f for f in (self.score, self.seen.rest) if f is not None), *uniform, *learned)

    def tile_reads(self, tiles: str) -> frozenset[str]:
        """The names that a tile of queries reads, "rows" among them where it needs the numbers of its rows.

        `tiles` says which: "mixed", "full" or, with one score for what `uniform` reads, "uniform".
        """
        functions = (self._score_of(tiles), self.seen.rest if tiles == "mixed" else None)
        reads = frozenset[str]().union(*(f.body.reads for f in functions if f is not None))
        return reads | {"rows"} if "q" in reads else reads

    def reads_start(self, tiles: str) -> bool:
        """Whether logits and mask of a tile of queries depend on where it stands."""
        if self.dropout or (tiles == "mixed" and (self.seen.by_place or self.seen.loads)):
            return True
        return bool(self.tile_reads(tiles) & {"rows", "q_first"})

    def logits_of(self, tiles: str) -> str:
        """The logits of a tile, and where `nonlinear` their derivatives."""
        if self.uniform and tiles == "uniform":
            return self.uniform.logits(_SPREAD)
        return self.score_call

    def _score_of(self, tiles: str) -> Function | None:
        return self.uniform.score if self.uniform and tiles == "uniform" else self.score

    @property
    def uniform_names(self) -> tuple[str, ...]:
        """What says whether a tile of queries is uniform, beside its number."""
        assert self.uniform is not None
        lengths = {"q_len", "kv_len"} if self.q_offset else {"q_len"}
        read = sorted({*self.uniform.test.body.reads} - {"q_first", "q_last"} | lengths)
        return tuple(dict.fromkeys(("num_tiles", *self.queries.placed_by, *read)))

    @property
    def is_uniform(self) -> str:
        return f"_is_uniform_query_tile(i, {', '.join(self.uniform_names)}, BM)"


def backward_kv_sm90_view(facts: Facts, known: Sequence[Function] = (), *, in_rows: bool = True) -> BackwardKvSm90View:
    """Work the holes out; `known` are the functions that the kernels before this one define.

    `in_rows`: what is read for each pair in rows may be loaded so.
    """
    variant, rows, scheduled = facts.variant, facts.rows, facts.rows_scheduled
    prologue = new_prologue(facts, walked=ROW, approximate=variant.approximate, dialect=GLUON, packs=True)
    pair_rows = pair_rows_of(facts, prologue, "scores_layout") if in_rows else None
    score, nonlinear, factor = score_function(facts, prologue, Q_START, pair_rows.given if pair_rows else NOTHING)
    score = named_apart(
        score, known, *(("_of_loaded", "_of_loaded_by_key") if pair_rows else ("_by_key", "_by_key_sm90"))
    )
    seen = seen_rows_of(facts, score, prologue, known)
    queries = query_tiles(facts, checks_end=score is not None)
    functions = [f for f in (score, seen.rest) if f is not None]
    reads = prologue.reads.union(seen.reads - {"queries", "q"}, *(f.body.reads for f in functions)) - {*seen.loaded}
    reads |= dropout_reads(variant)
    uniform = None if nonlinear or score is None else uniform_score(facts, prologue, known, along_queries=True)
    learned = learned_sm90(
        facts, (uniform.prologue if uniform else prologue).fork(), uniform.condition if uniform else None
    )
    apart = (part.reads for part in (learned, uniform) if part is not None)
    needed = reads.union(queries.names, prologue.reads, *apart)
    # The number of batch elements is among the sizes.
    extra = extra_arguments(variant, needed - {"batch"})
    # A step that drops weights leaves no registers for a loop over tiles of keys.
    persistent = variant.dropout is None and not nonlinear and (scheduled or _leaves_registers(facts, score))
    ranked = persistent and scheduled
    launched = ("batch", "num_rows", "head_group", *(["by_rank"] if ranked else []))
    whole = nonlinear or score is None or facts.logit_of_pairs
    return BackwardKvSm90View(
        score=score,
        score_call="" if score is None else ("" if whole else _SPREAD) + score.call,
        nonlinear=nonlinear,
        factor=factor,
        seen=seen,
        clamps_q="q" in variables(*facts.gathers),
        queries=queries,
        longest_first=not scheduled and bool(rows.lower) and not rows.upper,
        rank=schedule_row(facts, "gl.cdiv(kv_len, BN)", "place", GLUON) if ranked else "",
        ranks_batch=ranked and facts.mask_by_batch,
        persistent=persistent,
        natural=facts.logits.natural,
        without_fma=facts.logits.without_fma,
        holds_v=persistent and not scheduled and uniform is None and variant.mask is not TRUE,
        plain_mask=facts.plain_mask,
        counts_queries=counts_queries(facts, (read for read in facts.gathers if "q" not in variables(read))),
        prologue=(*prologue.lines, *seen.lines),
        reads=frozenset(reads),
        q_offset=q_offset(facts),
        arguments=(*ROW_SCHEDULE, *extra) if scheduled else extra,
        sizes=(*sizes_of(needed | _ALWAYS), *(["by_rank"] if ranked else [])),
        unspecialized=tuple(
            dict.fromkeys((*unspecialized(variant, needed, scheduled, ROW_SCHEDULE), *launched, *PACKED_SIZES))
        ),
        pair_rows=pair_rows,
        learned=learned,
        uniform=uniform,
    )


def backward_kv_wide_sm90_view(
    facts: Facts, narrow: BackwardKvSm90View, known: Sequence[Function] = ()
) -> BackwardKvSm90View:
    """The view for wide heads, from that for heads that are not.

    Its tiles leave no shared memory through which pairs that were loaded could go to other threads.
    """
    return (backward_kv_sm90_view(facts, known, in_rows=False) if narrow.pair_rows else narrow).wide


# Which tile of keys a program has.
_PLACES = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_group")
# The scalars that every variant's kernel reads.
_ALWAYS = frozenset({"scale", "num_rows", *_PLACES})
_SPREAD = "gl.zeros([64, BM], gl.float32, scores_layout) + "


def _leaves_registers(facts: Facts, score: Function | None) -> bool:
    """Whether logits and mask follow from positions and what holds for a head: a loop over tiles of keys finds room."""
    return facts.mask_of_positions and (score is None or "q" not in score.body.reads)


BACKWARD_KV_SM90 = KernelText(
    "backward_kv_sm90",
    "dk and dv, and dq where a config fuses it, for Hopper",
    lambda views: backward_kv_sm90_view(views.facts, views.functions),
)
BACKWARD_KV_WIDE_SM90 = KernelText(
    "backward_kv_wide_sm90",
    "dk and dv of wide heads, for Hopper",
    lambda views: backward_kv_wide_sm90_view(views.facts, views["backward_kv_sm90"], views.functions),
    # What brings the sums of dQ that kernels add to into their order.
    launched=(("backward_kv_wide_sm90", "_backward_kv_wide_sm90"), ("collect_dq", "collect_dq")),
)
