"""What the forward template needs to know of a variant: the text for its holes, and which parts exist at all."""

from __future__ import annotations

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
from flashgen.codegen.kernel_text import KernelText
from flashgen.codegen.limits import loop_limits, scheduled_tiles
from flashgen.codegen.online import OnlineSoftmax
from flashgen.codegen.pairs import Function, pairs
from flashgen.lang.nodes import TRUE


@dataclass(frozen=True)
class ForwardView(OnlineSoftmax):
    """The holes of the forward kernel. Every string is Triton text; names are those of the kernel.

    `score` is None where the logit is the dot product times `qk_scale`: `scaled`. `mask` is None without one.
    `precision` is that of products of float32 inputs. `shown` is what a mixed tile keeps. `limits` are statements that
    name the loops' ends. `arguments` are the kernel's arguments beyond those that every variant has, `unspecialized`
    those of all that change from call to call.
    """

    name: str
    scaled: bool
    score: Function | None
    score_call: str
    mask: Function | None
    logit: str
    shown: str
    clamps_k: bool
    score_reads_k: bool
    scheduled: bool
    two_sided: bool
    longest_first: bool
    q_vector: bool
    precise: bool
    precision: str
    q_first: bool
    q_last: bool
    q_offset: str
    prologue: tuple[str, ...]
    limits: tuple[str, ...]
    epilogue: tuple[str, ...]
    natural: bool
    without_fma: bool
    row_shift: bool
    sink: bool
    dropout: bool
    arguments: tuple[str, ...]
    unspecialized: tuple[str, ...]

    @property
    def functions(self) -> tuple[Function, ...]:
        """Those that the kernel calls."""
        return tuple(f for f in (self.score, self.mask) if f is not None)


def forward_view(facts: Facts) -> ForwardView:
    """Work the holes out."""
    variant, scheduled = facts.variant, facts.uses_schedule
    prologue = new_prologue(facts, packs=True)
    found = pairs(facts, prologue)
    limits: tuple[str, ...] = ()
    if found.mask is not None:
        limits = scheduled_tiles(facts) if scheduled else loop_limits(facts, prologue).lines
    epilogue = prologue.fork()
    row_shift = found.row_shift(epilogue)
    reads = prologue.reads | found.reads | dropout_reads(variant)
    arguments = extra_arguments(variant, reads | ({"sinks_ptr"} if variant.sink else set()))
    spread = "tl.zeros([BM, BN], tl.float32) + " if found.spread else ""
    return ForwardView(
        name="_forward",
        scaled=found.score is None,
        score=found.score,
        score_call="" if found.score is None else spread + found.score.call,
        mask=found.mask,
        logit=found.logit,
        shown=found.shown.result,
        clamps_k=found.clamps_k,
        score_reads_k=found.score_reads_k,
        scheduled=scheduled,
        two_sided=bool(facts.keys.lower),
        longest_first=facts.longest_first,
        q_vector="q" in reads,
        precise="PRECISE" in reads,
        precision="tf32" if variant.allow_tf32 else "ieee",
        q_first="q_first" in reads,
        q_last="q_last" in reads,
        q_offset=q_offset(facts),
        prologue=prologue.lines,
        limits=limits,
        epilogue=(*epilogue.lines, *row_shift),
        natural=found.natural,
        without_fma=facts.logits.without_fma,
        row_shift=bool(row_shift),
        sink=variant.sink,
        dropout=variant.dropout is not None,
        arguments=(*SCHEDULE, *arguments) if scheduled else arguments,
        unspecialized=(*unspecialized(variant, reads, scheduled), *PACKED_SIZES),
    )


def default_name(facts: Facts) -> str:
    """What the function that has the forward kernel's built-in configs is called."""
    if facts.usually_has_long_functions and not facts.usually_has_lookups:
        return "default_functions_config"
    crowded = facts.has_long_functions  # their registers are there for all tiles, however few take them
    if facts.uses_schedule:
        narrow = facts.mask_reads_keys or facts.mask_divides_keys or facts.usually_has_lookups or crowded
        return "default_by_key_config" if narrow else "default_scheduled_config"
    if crowded or (facts.usually_has_lookups and facts.variant.mask is not TRUE):
        return "default_lookups_config"
    plain = facts.logits.scaled is not None and (facts.variant.mask is TRUE or facts.longest_first)
    # Dropout leaves three consumers too few registers.
    return "default_plain_config" if plain and facts.variant.dropout is None else "default_config"


FORWARD = KernelText("forward", "out and lse", lambda views: forward_view(views.facts))
