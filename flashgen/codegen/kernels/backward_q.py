"""What the template of the portable kernel for dQ needs to know of a variant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashgen.analysis.facts import Facts
from flashgen.codegen.arguments import PACKED_SIZES, SCHEDULE, dropout_reads, new_prologue, q_offset, unspecialized
from flashgen.codegen.backward import BackwardView, arguments_of, reads_of, score_function, spread
from flashgen.codegen.kernel_text import KernelText
from flashgen.codegen.kernels.forward import ForwardView
from flashgen.codegen.learned import LearnedView, learned_view
from flashgen.codegen.limits import loop_limits, scheduled_tiles
from flashgen.codegen.pairs import Function, named_apart, pairs
from flashgen.lang.magnitudes import is_tame
from flashgen.lang.variables import Q_FIRST


@dataclass(frozen=True)
class BackwardQView(BackwardView):
    """A kernel that owns queries and walks along keys, as the forward kernel does; see ForwardView.

    It computes dQ or, where `learned`, the gradients of learned inputs.
    """

    name: str
    two_sided: bool
    longest_first: bool
    clamps_k: bool
    learned: LearnedView | None = None
    guards_rows: bool = False  # a row beyond the last may have a score that is no number, or infinite

    @property
    def functions(self) -> tuple[Function, ...]:
        return (*super().functions, *(self.learned.functions if self.learned else ()))

    @property
    def reads_k(self) -> bool:
        """Whether a full tile needs the positions of its keys."""
        readers = [f.body.reads for f in (self.score,) if f is not None]
        return any("k" in reads for reads in (*readers, self.learned.reads if self.learned else ()))

    @property
    def several_launches(self) -> bool:
        """Whether there may be several launches, each for some of the heads."""
        return self.learned is not None and self.learned.several_launches


def backward_q_view(facts: Facts, forward: ForwardView, known: Sequence[Function] = ()) -> BackwardQView:
    """The holes of the kernel for dQ. What it computes as the forward kernel does, it does by the same functions.

    `known` are the functions that the kernels before that define.
    """
    return along_keys(facts, forward, (*known, *forward.functions), for_inputs=False)


def along_keys(facts: Facts, forward: ForwardView, known: Sequence[Function], for_inputs: bool) -> BackwardQView:
    """The holes of a kernel that walks along keys: for dQ, or for the gradients of learned inputs."""
    variant, scheduled = facts.variant, facts.uses_schedule
    prologue = new_prologue(facts, packs=True)
    found = pairs(facts, prologue)
    if for_inputs:
        score, nonlinear, factor = found.score, False, ""
        learned = learned_view(facts, prologue)
    else:
        score, nonlinear, factor = score_function(facts, prologue, Q_FIRST)
        learned = None
    score, mask = (named_apart(function, known, "_by_query") for function in (score, found.mask))
    limits: tuple[str, ...] = ()
    if mask is not None:
        limits = scheduled_tiles(facts) if scheduled else loop_limits(facts, prologue).lines
    row = "" if found.row is None else prologue.inline(found.row)
    reads = reads_of(prologue, score, mask) | (learned.reads if learned else frozenset()) | dropout_reads(variant)
    return BackwardQView(
        score=score,
        score_call="" if score is None else spread(facts, "[BM, BN]", nonlinear) + score.call,
        nonlinear=nonlinear,
        factor=factor,
        mask=mask,
        shown=found.shown_by(mask).result,
        scheduled=scheduled,
        natural=found.natural,
        without_fma=facts.logits.without_fma,
        row=row,
        prologue=prologue.lines,
        limits=limits,
        reads=reads,
        precision=forward.precision,
        q_offset=q_offset(facts),
        arguments=arguments_of(variant, reads, SCHEDULE if scheduled else ()),
        unspecialized=(
            *unspecialized(variant, {*reads}, scheduled),
            *PACKED_SIZES,
            *(["first_head"] if learned and learned.several_launches else []),
        ),
        name="_backward_inputs" if for_inputs else "_backward_q",
        two_sided=bool(facts.keys.lower),
        longest_first=facts.longest_first,
        clamps_k=found.clamps_k,
        learned=learned,
        guards_rows=for_inputs and not is_tame(variant.score),
    )


BACKWARD_Q = KernelText("backward_q", "dq", lambda views: backward_q_view(views.facts, views["forward"]))
