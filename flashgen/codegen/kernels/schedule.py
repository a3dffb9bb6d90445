"""What the schedule template needs to know of a variant whose mask is no interval of keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashgen.analysis.facts import Facts
from flashgen.codegen.arguments import PACKED_SIZES, extra_arguments, new_prologue, q_offset, unspecialized
from flashgen.codegen.kernel_text import KernelText, Views
from flashgen.codegen.pairs import Function, mask_function, named_apart
from flashgen.emit.fragments import Fragment
from flashgen.lang.nodes import FALSE, TRUE, Const
from flashgen.lang.tiles import TileTruth
from flashgen.lang.traversal import variables


@dataclass(frozen=True)
class ScheduleView:
    """The holes of the classifying kernel. `state` turns what the corners of the tiles say, after `body`, into states.

    `decides` is False where the corners never say anything. `by_batch` and `by_head` tell whether the mask differs from
    one batch element or head to the next, `kv_h` whether it asks for the head of the keys. `reads` are the names that
    the kernel reads.
    """

    name: str
    mask: Function
    body: Fragment
    state: tuple[str, ...]
    decides: bool
    by_batch: bool
    by_head: bool
    kv_h: bool
    reads: frozenset[str]
    q_offset: str
    sizes: tuple[str, ...]
    prologue: tuple[str, ...]
    arguments: tuple[str, ...]
    unspecialized: tuple[str, ...]

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions that the kernel calls."""
        return (self.mask,)

    @property
    def corners_read_keys(self) -> bool:
        """Whether `body` asks where a tile of keys stands."""
        return not {"k", "k_first", "k_last"}.isdisjoint(self.body.reads)


def schedule_view(facts: Facts, known: Sequence[Function]) -> ScheduleView:
    """Work the holes out; `known` are the functions that the kernels before this one define."""
    variant, truth = facts.variant, facts.tile_truth
    prologue = new_prologue(facts, packs=True)
    # What is computed in front of the loop may go by other names here.
    mask = named_apart(mask_function(facts, prologue), known, "_in_tile")
    assert mask is not None, "a variant without a mask has no schedule"
    body = prologue.body(truth.every, truth.some, inlined=True)
    reads = prologue.reads | set(mask.body.reads) | set(body.reads)
    used = variables(variant.mask)
    sizes = tuple(name for name in ("heads", "kv_heads", "head_dim") if name in reads or "kv_h" in used)
    integers = unspecialized(variant, reads, scheduled=True)
    return ScheduleView(
        name="_classify",
        mask=mask,
        body=body,
        state=_state(truth, body),
        decides=not (truth.every is FALSE and truth.some is TRUE),
        by_batch=facts.mask_by_batch,
        by_head=facts.mask_by_head,
        kv_h="kv_h" in used,
        reads=frozenset(reads),
        q_offset=q_offset(facts),
        sizes=sizes,
        prologue=prologue.lines,
        arguments=extra_arguments(variant, reads),
        unspecialized=(
            *(n for n in integers if n not in _FORWARD_ONLY or n in sizes),
            *(["schedule_heads"] if facts.mask_by_head else []),
            *PACKED_SIZES,
        ),
    )


_FORWARD_ONLY = frozenset({"heads", "kv_heads", "head_dim", "v_head_dim"})


def _state(truth: TileTruth, body: Fragment) -> tuple[str, ...]:
    """Statements for the states of a chunk: 0 where no pair can be visible, 2 where each must be, else 1, doubt."""
    every, some = body.results
    lines = []
    terms = ["tl.zeros([CHUNK], tl.int32)"]
    for name, expr, text in (("some", truth.some, some), ("every", truth.every, every)):
        if isinstance(expr, Const):
            terms += ["1"] if expr.value else []
        else:
            lines.append(f"{name} = {text}")
            terms.append(f"{name}.to(tl.int32)")
    return (*lines, f"state = {' + '.join(terms)}")


def _view(views: Views) -> ScheduleView | None:
    needed = views.facts.uses_schedule or views.facts.rows_scheduled
    return schedule_view(views.facts, views.functions) if needed else None


SCHEDULE = KernelText(
    "schedule", "which tiles of queries and keys the mask leaves out, mixes or leaves whole", _view,
    launched=(("schedule", "_classify"),),
)  # fmt: skip
