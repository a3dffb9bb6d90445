"""What the template of the portable kernel for dK and dV needs to know of a variant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashgen.analysis.facts import Facts
from flashgen.analysis.levels import ROW
from flashgen.codegen.arguments import PACKED_SIZES, ROW_SCHEDULE, dropout_reads, new_prologue, q_offset, unspecialized
from flashgen.codegen.backward import BackwardView, arguments_of, reads_of, row_step, score_function, spread
from flashgen.codegen.kernel_text import KernelText
from flashgen.codegen.kernels.forward import ForwardView
from flashgen.codegen.limits import Limits, row_limits, scheduled_tiles
from flashgen.codegen.pairs import Function, mask_function, named_apart
from flashgen.emit.fragments import Fragment
from flashgen.lang.variables import Q_START


@dataclass(frozen=True)
class BackwardKvView(BackwardView):
    """The kernel that owns keys and walks along queries. `step` are statements of each step of the loop, `masked` is
    the condition under which its tile needs the mask; first and stop are where the loop begins and ends.
    """

    name: str
    step: tuple[str, ...]
    first: str
    stop: str
    masked: str


def backward_kv_view(facts: Facts, forward: ForwardView, known: Sequence[Function]) -> BackwardKvView:
    """The holes of the kernel for dK and dV; `known` are the functions that the kernels before it define."""
    variant, scheduled = facts.variant, facts.rows_scheduled
    prologue = new_prologue(facts, walked=ROW, packs=True)
    score, nonlinear, factor = score_function(facts, prologue, Q_START)
    score, mask = (named_apart(function, known, "_by_key") for function in (score, mask_function(facts, prologue)))
    step = row_step(facts, prologue)
    if scheduled:
        limits = Limits(scheduled_tiles(facts, ROW_SCHEDULE, "keys", "queries"), "0", "", _SCHEDULED)
    else:
        limits = row_limits(facts.rows, prologue, checks_end=score is not None)
    reads = reads_of(prologue, score, mask) | {*step.reads} | dropout_reads(variant)
    return BackwardKvView(
        name="_backward_kv",
        score=score,
        score_call="" if score is None else spread(facts, "[BN, BM]", nonlinear) + score.call,
        nonlinear=nonlinear,
        factor=factor,
        mask=mask,
        shown=_shown(score, mask),
        scheduled=scheduled,
        natural=facts.logits.natural,
        without_fma=facts.logits.without_fma,
        row=step.results[0] if step.results else "",
        prologue=prologue.lines,
        limits=limits.lines,
        reads=reads,
        precision=forward.precision,
        q_offset=q_offset(facts),
        arguments=arguments_of(variant, reads, ROW_SCHEDULE if scheduled else ()),
        unspecialized=(*unspecialized(variant, {*reads}, scheduled, ROW_SCHEDULE), *PACKED_SIZES),
        step=step.lines,
        first=limits.first,
        stop=limits.stop,
        masked=limits.masked.result,
    )


def _shown(score: Function | None, mask: Function | None) -> str:
    """What a transposed tile that needs the mask keeps: what is visible, of keys and queries that exist."""
    checks = ["(cols < kv_len)[:, None]", *(["(rows < q_len)[None, :]"] if score is not None else [])]
    return " & ".join([*([] if mask is None else [mask.call]), *checks])


# Which of the tiles that a schedule lists need the mask: those that come first.
_SCHEDULED = Fragment(results=("i < num_mixed",), reads=("i", "num_mixed"))


BACKWARD_KV = KernelText(
    "backward_kv",
    "dk and dv, and dq where a config fuses it",
    lambda views: backward_kv_view(views.facts, views["forward"], views.functions),
)
