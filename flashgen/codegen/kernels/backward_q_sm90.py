"""What the Hopper template of the kernel for dQ needs to know of a variant.

Which tiles of keys a tile of queries sees, it asks the functions of the Hopper forward; scores, their derivatives and
masks come from the same functions as in the portable kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashgen.analysis.facts import Facts
from flashgen.codegen.arguments import (
    PACKED_SIZES,
    SCHEDULE,
    dropout_reads,
    extra_arguments,
    new_prologue,
    q_offset,
    unspecialized,
)
from flashgen.codegen.backward import ScoreView, score_function
from flashgen.codegen.kernel_text import KernelText
from flashgen.codegen.kernels.forward_sm90 import ForwardSm90View
from flashgen.codegen.pairs import Function, named_apart, pairs
from flashgen.codegen.sm90.keys import KeyTiles, Work, is_shifted, of_roles
from flashgen.codegen.sm90.roles import sizes_of
from flashgen.codegen.sm90.uniform import KeyTileTest, UniformTiles, key_tile_test, uniform_score
from flashgen.emit.dialects import GLUON
from flashgen.lang.variables import Q_FIRST

_SPREAD = "gl.zeros([64, BN], gl.float32, qk_layout) + "
# The scalars that every variant's kernel reads.
_ALWAYS = {"scale", "batch", "heads", "kv_heads", "q_len", "kv_len", "num_rows"}


@dataclass(frozen=True)
class BackwardQSm90View(ScoreView):
    """The holes of the Hopper kernel for dQ: of scores as `BackwardQView` has them, of tiles as `ForwardSm90View` does.

    `keys_arguments` are those that say which tiles of keys there are, `sizes` the scalars among those of every variant.
    `reads` are the names that the consumers read, `loaded` what the producer takes of its work.
    """

    mask: Function | None
    shown: str
    clamps_k: bool
    reads_k: bool
    keys: KeyTiles | None
    work: Work
    start: str
    loaded: tuple[str, ...]
    longest_first: bool
    row: str
    reads_kv_len: bool
    keys_arguments: tuple[str, ...]
    sizes: tuple[str, ...]
    uniform: UniformTiles | None
    uniform_test: KeyTileTest | None
    own_test: KeyTileTest | None

    @property
    def producer_sizes(self) -> tuple[str, ...]:
        """Of `sizes` those that say which tiles there are."""
        read = {"batch", "heads", "kv_heads", "num_rows", *self.work.names}
        return tuple(name for name in self.sizes if name in read)

    of_roles = staticmethod(of_roles)

    @property
    def consumer_sizes(self) -> tuple[str, ...]:
        return tuple(name for name in self.sizes if name != "kv_heads" or {"kv_h", name} & self.reads)

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions that the kernel calls."""
        uniform = self.uniform.functions if self.uniform else ()
        return (*(f for f in (self.score, self.mask) if f is not None), *uniform)

    @property
    def uniform_call(self) -> str:
        """The logits of a uniform tile."""
        assert self.uniform is not None
        return self.uniform.logits(_SPREAD, k_first="start")


def backward_q_sm90_view(facts: Facts, forward: ForwardSm90View, known: Sequence[Function]) -> BackwardQSm90View:
    """Work the holes out; `known` are the functions that the kernels before this one define."""
    variant, scheduled = facts.variant, facts.uses_schedule
    prologue = new_prologue(facts, approximate=variant.approximate, dialect=GLUON, packs=True)
    found = pairs(facts, prologue)
    score, nonlinear, factor = score_function(facts, prologue, Q_FIRST)
    suffixes = ("_by_query", "_by_query_sm90")
    score, mask = named_apart(score, known, *suffixes), named_apart(found.mask, known, *suffixes)
    shown = found.shown_by(mask)
    row = "" if found.row is None else prologue.inline(found.row)
    uniform = None if nonlinear or score is None else uniform_score(facts, prologue, known, along_queries=False)
    test = None
    if uniform is not None:
        test = key_tile_test(uniform, forward.keys, forward.start, forward.uniform_test, "_by_query")
    functions = (score, mask, *(uniform.functions if uniform else ()))
    reads = prologue.reads.union(*(f.body.reads for f in functions if f is not None)) - {"k_first", "k_last"}
    reads |= dropout_reads(variant)
    needed = {*reads, *forward.work.names, *_ALWAYS}
    reads_kv_len = forward.keys is None or mask is None or uniform is not None or found.clamps_k
    reads_kv_len |= "kv_len" in {*reads, *shown.reads} or is_shifted(facts, {*reads})
    # The number of batch elements is among the sizes.
    extra, sizes = extra_arguments(variant, needed - {"batch"}), sizes_of(needed)
    whole = nonlinear or score is None or facts.logit_of_pairs
    return BackwardQSm90View(
        score=score,
        score_call="" if score is None else ("" if whole else _SPREAD) + score.call,
        nonlinear=nonlinear,
        factor=factor,
        mask=mask,
        shown=shown.result,
        clamps_k=found.clamps_k,
        reads_k=score is not None and "k" in score.body.reads,
        keys=forward.keys,
        work=forward.work,
        start=forward.start,
        loaded=forward.loaded,
        longest_first=forward.grouped,
        natural=found.natural,
        without_fma=facts.logits.without_fma,
        row=row,
        prologue=(*prologue.lines, *(uniform.lines if uniform else ())),
        reads=frozenset(reads),
        reads_kv_len=reads_kv_len,
        q_offset=q_offset(facts),
        arguments=(*SCHEDULE, *extra) if scheduled else extra,
        keys_arguments=forward.keys.arguments if forward.keys else (),
        sizes=sizes,
        unspecialized=tuple(
            dict.fromkeys(
                (*unspecialized(variant, needed, scheduled), *(s for s in sizes if s != "scale"), *PACKED_SIZES)
            )
        ),
        uniform=uniform,
        uniform_test=test,
        own_test=None if test == forward.uniform_test else test,
    )


BACKWARD_Q_SM90 = KernelText(
    "backward_q_sm90",
    "dq, for Hopper",
    lambda views: backward_q_sm90_view(views.facts, views["forward_sm90"], views.functions),
)
