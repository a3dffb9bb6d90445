"""What the forward template needs to know of a variant: the text for its holes, and which parts exist at all."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flashgen.analysis.facts import Facts
from flashgen.analysis.rows_of_pairs import rows_of_pairs
from flashgen.codegen.arguments import (
    PACKED_SIZES,
    SCHEDULE,
    dropout_reads,
    new_prologue,
    unspecialized,
)
from flashgen.codegen.kernel_text import KernelText
from flashgen.codegen.limits import loop_limits, scheduled_tiles
from flashgen.codegen.online import OnlineSoftmax, online_softmax
from flashgen.codegen.pairs import bytes_read, pairs
from flashgen.lang.nodes import TRUE

# Of what is read for each pair in rows, and comes a tile ahead.
_BYTES_OF_WIDE_TILES = 2


@dataclass(frozen=True)
class ForwardView(OnlineSoftmax):
    """The holes of the forward kernel.

    `limits` are statements that name the loops' ends. `unspecialized` are the arguments that change from call to call.
    """

    name: str
    score_reads_k: bool
    two_sided: bool
    longest_first: bool
    limits: tuple[str, ...]
    dropout: bool
    unspecialized: tuple[str, ...]


def forward_view(facts: Facts) -> ForwardView:
    """Work the holes out."""
    variant, scheduled = facts.variant, facts.uses_schedule
    prologue = new_prologue(facts, packs=True)
    found = pairs(facts, prologue)
    limits: tuple[str, ...] = ()
    if found.mask is not None:
        limits = scheduled_tiles(facts) if scheduled else loop_limits(facts, prologue).lines
    common = online_softmax(facts, found, prologue, dropout_reads(variant))
    if scheduled:
        common = replace(common, arguments=(*SCHEDULE, *common.arguments))
    return ForwardView(
        **vars(common),
        name="_forward",
        score_reads_k=found.score_reads_k,
        two_sided=bool(facts.keys.lower),
        longest_first=facts.longest_first,
        limits=limits,
        dropout=variant.dropout is not None,
        unspecialized=(*unspecialized(variant, common.reads, scheduled), *PACKED_SIZES),
    )


def default_name(facts: Facts) -> str:
    """What the function that has the forward kernel's built-in configs is called."""
    if facts.usually_has_long_functions and not facts.usually_has_lookups:
        return "default_functions_config"
    in_rows = bytes_read(facts.variant, rows_of_pairs(facts))
    # The registers of long functions are there for all tiles, however few take them, as those of what comes in rows.
    crowded = facts.has_long_functions or in_rows > _BYTES_OF_WIDE_TILES
    if facts.uses_schedule:
        narrow = facts.mask_reads_keys or facts.mask_divides_keys or facts.usually_has_lookups or crowded
        return "default_by_key_config" if narrow else "default_scheduled_config"
    if crowded or (facts.usually_has_lookups and facts.variant.mask is not TRUE):
        return "default_lookups_config"
    if in_rows:
        return "default_pairs_config"
    plain = facts.logits.scaled is not None and (facts.variant.mask is TRUE or facts.longest_first)
    # Dropout leaves three consumers too few registers.
    return "default_plain_config" if plain and facts.variant.dropout is None else "default_config"


FORWARD = KernelText("forward", "out and lse", lambda views: forward_view(views.facts))
