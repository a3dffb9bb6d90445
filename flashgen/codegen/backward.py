"""What the backward templates need to know of a variant: the holes of the kernel for dQ, and of that for dK and dV."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flashgen.analysis.facts import Facts
from flashgen.analysis.levels import PAIR, level
from flashgen.codegen.arguments import DROPOUT, extra_arguments
from flashgen.codegen.pairs import NOTHING, Function, Given
from flashgen.emit.fragments import Fragment
from flashgen.emit.prologue import Prologue
from flashgen.lang.magnitudes import is_finite
from flashgen.lang.nodes import Expr, const, op
from flashgen.lang.show import show
from flashgen.lang.traversal import substitute
from flashgen.lang.variables import Q_FIRST, Q_START
from flashgen.spec.variant import Variant


@dataclass(frozen=True)
class ScoreView:
    """The holes that all kernels of the backward pass have. Every string is kernel text; names are the kernel's.

    `score` is None where the logit is the dot product times `qk_scale`. Where `nonlinear`, it also returns d score_out
    / d score, which differs from pair to pair; otherwise `factor` is that derivative as text to multiply with, empty
    for 1. Logits are in units of log2, or `natural`. `reads` are the names that the kernel reads, `arguments` its
    arguments beyond those that every variant has, `unspecialized` those that change from call to call.
    """

    score: Function | None
    score_call: str
    nonlinear: bool
    factor: str
    natural: bool
    without_fma: bool
    prologue: tuple[str, ...]
    reads: frozenset[str]
    q_offset: str
    arguments: tuple[str, ...]
    unspecialized: tuple[str, ...]

    @property
    def dropout(self) -> bool:
        return self.reads.issuperset(DROPOUT)

    @property
    def logit(self) -> str:
        return "qk" if self.score is None else "x"


@dataclass(frozen=True)
class BackwardView(ScoreView):
    """The holes that both portable kernels have.

    `mask` is None without one; `shown` is what a tile that needs it keeps. `row` is constant along a row of the
    logits, to be taken off its log-sum-exp.
    """

    mask: Function | None
    shown: str
    scheduled: bool
    row: str
    limits: tuple[str, ...]
    precision: str

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions that the kernel calls."""
        return tuple(f for f in (self.score, self.mask) if f is not None)


def score_function(
    facts: Facts, prologue: Prologue, q_first: Expr, given: Given = NOTHING
) -> tuple[Function | None, bool, str]:  # fmt: skip
    """The function for a pair's logit, whether it also gives its derivative, and else the derivative as a factor.

    What is `given` has a name.
    """
    variant, found, derivative = facts.variant, facts.logits, facts.slope
    pair = substitute(found.pair, {Q_FIRST: q_first})
    factor = "" if facts.nonlinear or derivative is const(1.0) else prologue.name(derivative, "slope")
    formula = show(variant.score, variant.lets)
    if found.scaled is not None:
        prologue.name(found.scaled, "qk_scale")
        return None, False, factor
    note = "" if found.natural else ", in units of log2"
    note += "" if found.row is None else ", less what is constant along a row"
    if not facts.nonlinear:
        return Function("_score", prologue.body(pair, given=given), f"{formula}{note}."), False, factor
    if not is_finite(derivative):
        # A score of minus infinity hides its pair, and 0 times an infinite slope is no 0.
        derivative = op("where", op("eq", pair, const(-math.inf)), const(0.0), derivative)
    body = prologue.body(pair, derivative, given=given)
    if level(derivative) != PAIR:
        # In mixed tiles it differs from pair to pair, and a variable keeps its shape in a loop.
        x, narrow = body.results
        body = replace(body, results=(x, f"tl.broadcast({narrow}, qk)[0]"))
    return Function("_score_and_slope", body, f"{formula}{note}, and its derivative by score."), True, ""


def row_step(facts: Facts, prologue: Prologue) -> Fragment:
    """What each step along queries computes of what is constant along a row of the logits; no result without any."""
    row = facts.logits.row
    return prologue.body(*([] if row is None else [substitute(row, {Q_FIRST: Q_START})]), inlined=True)


def spread(facts: Facts, shape: str, nonlinear: bool) -> str:
    """A logit that ignores the keys, or the queries, is spread over the tile."""
    if nonlinear or facts.logit_of_pairs:
        return ""
    return f"tl.zeros({shape}, tl.float32) + "


def reads_of(prologue: Prologue, *functions: Function | None) -> frozenset[str]:
    """The names that the statements in front of the loop and these functions read."""
    return frozenset(prologue.reads).union(*(f.body.reads for f in functions if f is not None))


def arguments_of(variant: Variant, reads: frozenset[str], schedule: Sequence[str]) -> tuple[str, ...]:
    """What a kernel takes beyond what every variant's does: of a `schedule`, and of the variant's own what it reads."""
    return (*schedule, *extra_arguments(variant, {*reads}))
