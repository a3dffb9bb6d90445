"""What the schedule template needs to know of a variant whose mask is no interval of keys."""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.codegen.forward import Function, extra_arguments, mask_function, new_prologue, q_offset, unspecialized
from flashgen.lang.nodes import FALSE, TRUE, variables
from flashgen.lang.tiles import tile_truth
from flashgen.lang.triton_emitter import Body
from flashgen.spec.variant import Variant


@dataclass(frozen=True)
class ScheduleView:
    """The holes of the classifying kernel. `every` and `some` are what the corners of a tile say, after `body`.

    `decides` is False where the corners never say anything. `b` and `h` tell whether the mask differs from one batch
    element or head to the next.
    """

    mask: Function
    body: Body
    every: str
    some: str
    decides: bool
    b: bool
    h: bool
    kv_h: bool
    q_first: bool
    q_last: bool
    k_last: bool
    q_offset: str
    sizes: tuple[str, ...]
    prologue: tuple[str, ...]
    arguments: tuple[str, ...]
    unspecialized: tuple[str, ...]
    helpers: tuple[str, ...]


def schedule_view(variant: Variant) -> ScheduleView:
    prologue = new_prologue(variant)
    mask = mask_function(variant, prologue)
    assert mask is not None, "a variant without a mask has no schedule"
    truth = tile_truth(variant.mask)
    body = prologue.body(truth.every, truth.some)
    free = prologue.free | set(mask.body.free) | set(body.free)
    used = variables(variant.mask)
    sizes = tuple(name for name in ("heads", "kv_heads", "head_dim") if name in free or "kv_h" in used)
    integers = unspecialized(variant, free, scheduled=True)
    return ScheduleView(
        mask=mask,
        body=body,
        every=body.results[0],
        some=body.results[1],
        decides=not (truth.every is FALSE and truth.some is TRUE),
        b="b" in used,
        h=bool({"h", "kv_h"} & used),
        kv_h="kv_h" in used,
        q_first="q_first" in free,
        q_last="q_last" in free,
        k_last="k_last" in free,
        q_offset=q_offset(variant),
        sizes=sizes,
        prologue=tuple(prologue.lines),
        arguments=extra_arguments(variant, free),
        unspecialized=(*(n for n in integers if n not in _FORWARD_ONLY or n in sizes), "schedule_heads"),
        helpers=tuple(sorted(prologue.helpers)),
    )


_FORWARD_ONLY = frozenset({"heads", "kv_heads", "head_dim", "v_head_dim"})
