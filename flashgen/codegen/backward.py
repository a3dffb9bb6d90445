"""What the backward templates need to know of a variant: the holes of the kernel for dQ, and of that for dK and dV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flashgen.analysis.facts import Facts
from flashgen.analysis.levels import PAIR, ROW, level
from flashgen.codegen.forward import ForwardView, extra_arguments, new_prologue, q_offset, unspecialized
from flashgen.codegen.learned import LearnedView, learned_view
from flashgen.codegen.limits import SCHEDULE, extremes, loop_limits, scheduled_tiles
from flashgen.codegen.pairs import Function, mask_function, named_apart, pairs
from flashgen.emit.fragments import Fragment
from flashgen.emit.prologue import Prologue
from flashgen.lang.bounds import KeyRange
from flashgen.lang.linear import expression, linear
from flashgen.lang.log2 import Q_FIRST, K
from flashgen.lang.nodes import Expr, Type, const, op, substitute, var
from flashgen.lang.show import show
from flashgen.spec.variant import Variant

ROW_SCHEDULE = ("counts_ptr", "tiles_ptr", "num_q_tiles")
# The first query of the tile at hand, which changes from step to step where the loop walks along queries.
Q_START = var("q_start", Type.INT)


@dataclass(frozen=True)
class BackwardView:
    """The holes that both kernels have. Every string is Triton text; names are those of the kernel.

    `score` is None where the logit is the dot product times `qk_scale`. Where `bent`, it also returns d score_out /
    d score, which differs from pair to pair; otherwise `factor` is that derivative as text to multiply with, empty
    for 1. `mask` is None without one; `shown` is what a tile that needs it keeps. `row` is constant along a row of
    the logits, to be taken off its log-sum-exp; both are in units of log2, or `natural`.
    """

    score: Function | None
    score_call: str
    bent: bool
    factor: str
    mask: Function | None
    shown: str
    scheduled: bool
    natural: bool
    row: str
    prologue: tuple[str, ...]
    limits: tuple[str, ...]
    reads: frozenset[str]
    precision: str
    q_offset: str
    arguments: tuple[str, ...]
    unspecialized: tuple[str, ...]
    helpers: tuple[str, ...]

    @property
    def functions(self) -> tuple[Function, ...]:
        """Those that the kernel calls."""
        return tuple(f for f in (self.score, self.mask) if f is not None)

    @property
    def logit(self) -> str:
        return "qk" if self.score is None else "x"


@dataclass(frozen=True)
class BackwardQView(BackwardView):
    """A kernel that owns queries and walks along keys, as the forward kernel does; see ForwardView.

    It computes dQ or, where `learned`, the gradients of learned inputs.
    """

    two_sided: bool
    longest_first: bool
    clamps_k: bool
    learned: LearnedView | None = None

    @property
    def functions(self) -> tuple[Function, ...]:
        return (*super().functions, *(self.learned.functions if self.learned else ()))

    @property
    def reads_k(self) -> bool:
        """Whether a full tile needs the positions of its keys."""
        readers = [f.body.reads for f in (self.score,) if f is not None]
        return any("k" in reads for reads in (*readers, self.learned.reads if self.learned else ()))

    @property
    def in_turns(self) -> bool:
        """Whether there may be several launches, each for some of the heads."""
        return self.learned is not None and self.learned.in_turns


@dataclass(frozen=True)
class BackwardKvView(BackwardView):
    """The kernel that owns keys and walks along queries. `step` are statements of each step of the loop, `masked` is
    the condition under which its tile needs the mask; first and stop are where the loop begins and ends.
    """

    step: tuple[str, ...]
    first: str
    stop: str
    masked: str


def backward_q_view(facts: Facts, forward: ForwardView) -> BackwardQView:
    """The holes of the kernel for dQ. What it computes as the forward kernel does, it does by the same functions."""
    return _along_keys(facts, forward, forward.functions, for_inputs=False)


def backward_inputs_view(
    facts: Facts, forward: ForwardView, known: Sequence[Function]
) -> BackwardQView | None:  # fmt: skip
    """The holes of the kernel for the gradients of learned inputs; None where no score depends on any smoothly."""
    view = _along_keys(facts, forward, known, for_inputs=True)
    return view if view.learned is not None and view.learned.sites else None


def _along_keys(facts: Facts, forward: ForwardView, known: Sequence[Function], for_inputs: bool) -> BackwardQView:
    variant, scheduled = facts.variant, facts.uses_schedule
    prologue = new_prologue(facts)
    found = pairs(facts, prologue)
    if for_inputs:
        score, bent, factor = found.score, False, ""
        learned = learned_view(facts, prologue)
    else:
        score, bent, factor = score_function(facts, prologue, Q_FIRST)
        learned = None
    score, mask = named_apart(score, known, "_by_query"), named_apart(found.mask, known, "_by_query")
    limits: tuple[str, ...] = ()
    if mask is not None:
        limits = scheduled_tiles(facts) if scheduled else loop_limits(facts, prologue).lines
    row = "" if found.row is None else prologue.inline(found.row)
    reads = _reads(prologue, score, mask) | (learned.reads if learned else frozenset())
    return BackwardQView(
        score=score,
        score_call="" if score is None else _spread(facts, "[BM, BN]", bent) + score.call,
        bent=bent,
        factor=factor,
        mask=mask,
        shown=found.shown_by(mask).result,
        scheduled=scheduled,
        natural=found.natural,
        row=row,
        prologue=prologue.lines,
        limits=limits,
        reads=reads,
        precision=forward.precision,
        q_offset=q_offset(facts),
        arguments=_arguments(variant, reads, SCHEDULE if scheduled else ()),
        unspecialized=(
            *unspecialized(variant, {*reads}, scheduled),
            *(["first_head"] if learned and learned.in_turns else []),
        ),
        helpers=tuple(sorted(prologue.helpers | ({"_add"} if learned and learned.adds else set()))),
        two_sided=bool(facts.keys.lower),
        longest_first=facts.longest_first,
        clamps_k=found.clamps_k,
        learned=learned,
    )


def backward_kv_view(facts: Facts, forward: ForwardView, known: Sequence[Function]) -> BackwardKvView:
    """The holes of the kernel for dK and dV; `known` are the functions that the kernels before it define."""
    variant, scheduled = facts.variant, facts.rows_scheduled
    prologue = new_prologue(facts, walked=ROW)
    score, bent, factor = score_function(facts, prologue, Q_START)
    score, mask = named_apart(score, known, "_by_key"), named_apart(mask_function(facts, prologue), known, "_by_key")
    step = row_step(facts, prologue)
    if scheduled:
        limits = Limits(scheduled_tiles(facts, ROW_SCHEDULE, "keys", "queries"), "0", "", _SCHEDULED)
    else:
        limits = row_limits(facts.rows, prologue, checks_end=score is not None)
    reads = _reads(prologue, score, mask) | {*step.reads}
    return BackwardKvView(
        score=score,
        score_call="" if score is None else _spread(facts, "[BN, BM]", bent) + score.call,
        bent=bent,
        factor=factor,
        mask=mask,
        shown=shown_by_key(score, mask),
        scheduled=scheduled,
        natural=facts.logits.natural,
        row=step.results[0] if step.results else "",
        prologue=prologue.lines,
        limits=limits.lines,
        reads=reads,
        precision=forward.precision,
        q_offset=q_offset(facts),
        arguments=_arguments(variant, reads, ROW_SCHEDULE if scheduled else ()),
        unspecialized=unspecialized(variant, {*reads}, scheduled, ROW_SCHEDULE),
        helpers=tuple(sorted(prologue.helpers)),
        step=step.lines,
        first=limits.first,
        stop=limits.stop,
        masked=limits.masked.result,
    )


def score_function(facts: Facts, prologue: Prologue, q_first: Expr) -> tuple[Function | None, bool, str]:
    """The function for a pair's logit, whether it also gives its derivative, and else the derivative as a factor."""
    variant, found, derivative = facts.variant, facts.logits, facts.slope
    pair = substitute(found.pair, {Q_FIRST: q_first})
    factor = "" if facts.bent or derivative is const(1.0) else prologue.name(derivative, "slope")
    formula = show(variant.score, variant.lets)
    if found.scaled is not None:
        prologue.name(found.scaled, "qk_scale")
        return None, False, factor
    note = "" if found.natural else ", in units of log2"
    note += "" if found.row is None else ", less what is constant along a row"
    if not facts.bent:
        return Function("_score", prologue.body(pair), f"{formula}{note}."), False, factor
    body = prologue.body(pair, derivative)
    if level(derivative) != PAIR:
        # In mixed tiles it differs from pair to pair, and a variable keeps its shape in a loop.
        x, narrow = body.results
        body = replace(body, results=(x, f"tl.broadcast({narrow}, qk)[0]"))
    return Function("_score_and_slope", body, f"{formula}{note}, and its derivative by score."), True, ""


def row_step(facts: Facts, prologue: Prologue) -> Fragment:
    """What each step along queries computes of what is constant along a row of the logits; no result without any."""
    row = facts.logits.row
    return prologue.body(*([] if row is None else [substitute(row, {Q_FIRST: Q_START})]), inlined=True)


def shown_by_key(score: Function | None, mask: Function | None) -> str:
    """What a transposed tile that needs the mask keeps: what is visible, of keys and queries that exist."""
    checks = ["(cols < kv_len)[:, None]", *(["(rows < q_len)[None, :]"] if score is not None else [])]
    return " & ".join([*([] if mask is None else [mask.call]), *checks])


def _spread(facts: Facts, shape: str, bent: bool) -> str:
    """A logit that ignores the keys, or the queries, is spread over the tile."""
    if bent or facts.logit_of_pairs:
        return ""
    return f"tl.zeros({shape}, tl.float32) + "


def _reads(prologue: Prologue, *functions: Function | None) -> frozenset[str]:
    return frozenset(prologue.reads).union(*(f.body.reads for f in functions if f is not None))


def _arguments(variant: Variant, reads: frozenset[str], schedule: Sequence[str]) -> tuple[str, ...]:
    return (*schedule, *extra_arguments(variant, {*reads}))


@dataclass(frozen=True)
class Limits:
    """Statements for the limits of a loop over queries; where it begins and ends, which of its tiles need the mask."""

    lines: tuple[str, ...]
    first: str
    stop: str
    masked: Fragment


_SCHEDULED = Fragment(results=("i < num_mixed",), reads=("i", "num_mixed"))


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
