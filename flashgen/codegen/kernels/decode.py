"""What the decode template needs to know of a variant: the holes of the dense kernel and of the paged one.

A tile's rows are pairs of a query and a head, so that what depends on the head is of a row here, as what depends on q.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flashgen.analysis.facts import Facts
from flashgen.analysis.levels import level
from flashgen.analysis.rows import row_facts
from flashgen.codegen.arguments import new_prologue, own_integers
from flashgen.codegen.kernel_text import KernelText
from flashgen.codegen.limits import extreme, loop_limits
from flashgen.codegen.online import OnlineSoftmax, online_softmax
from flashgen.codegen.packed import with_packed_queries
from flashgen.codegen.pairs import Function, Pairs, named_apart, pairs
from flashgen.emit.fragments import Fragment
from flashgen.emit.prologue import Prologue
from flashgen.lang.linear import expression, linear
from flashgen.lang.nodes import const, op
from flashgen.spec.variant import Variant


@dataclass(frozen=True)
class DecodeView(OnlineSoftmax):
    """The holes of a decode kernel.

    `paged`: keys lie in pages. `first` and `stop` are the ends of the keys that some row of the tile sees, "" for the
    first of all; `masked` is the condition under which a tile needs the mask. `row_shift_spread` is the row shift as a
    vector of rows. `span` is how many keys a query sees at most, None where no constant says.
    """

    name: str
    paged: bool
    limits: tuple[str, ...]
    first: bool
    stop: str
    masked: str
    row_shift_spread: str
    unspecialized: tuple[str, ...]
    span: int | None

    @property
    def of_rows(self) -> tuple[str, ...]:
        """What the kernel reads that differs from row to row."""
        return tuple(name for name in ("h", "q") if name in self.reads)

    @property
    def residue(self) -> bool:
        """Whether what the log-sum-exp has lost is written, for a backward pass."""
        return self.natural and not self.paged


def decode_view(variant: Variant, known: Sequence[Function], paged: bool) -> DecodeView:
    """Work the holes out; `known` are the functions that the kernels before this one define."""
    variant = with_packed_queries(variant) if paged else variant
    facts = row_facts(variant)
    prologue = new_prologue(facts)
    found = _apart(pairs(facts, prologue), facts.own, known)
    limits = _limits(facts, prologue)
    common = online_softmax(facts, found, prologue)
    common = replace(common, shown=common.shown or "k < kv_len")
    by_row = found.row is not None and bool(level(found.row))
    sizes = ("total_q", "max_q", "num_blocks", "max_keys") if paged else ("q_len", "kv_len", "num_splits")
    integers = own_integers(variant, common.reads)
    if paged and "batch" not in integers:
        sizes = (*sizes, "batch")
    return DecodeView(
        **vars(common),
        name="_decode_paged" if paged else "_decode",
        paged=paged,
        limits=limits.lines,
        first="first" in limits.defines,
        stop="stop" if "stop" in limits.defines else "kv_len",
        masked=limits.result,
        row_shift_spread="row_shift" if by_row else "row_shift + tl.zeros([BM], tl.float32)",
        unspecialized=("heads", "kv_heads", *sizes, *integers),
        span=_span(facts),
    )


def _apart(found: Pairs, own: Facts, known: Sequence[Function]) -> Pairs:
    """The functions of a pair under names of their own, but for those that another kernel has word for word."""
    same = pairs(own, new_prologue(own))
    return replace(found, score=_named(found.score, same.score, known), mask=_named(found.mask, same.mask, known))


def _named(function: Function | None, same: Function | None, known: Sequence[Function]) -> Function | None:
    """A function of rows: its formula is that of the `same` one for one head."""
    if function is None or same is None:
        return None
    return named_apart(replace(function, formula=same.formula), known, "_of_rows", "_of_items")


def _limits(facts: Facts, prologue: Prologue) -> Fragment:
    """Statements for the ends of the keys that are seen; the result says when a tile of them needs the mask."""
    if facts.keys.closed and (facts.keys.lower or facts.keys.upper):
        limits = loop_limits(facts, prologue)
        two_sided = "full_start" in limits.defines
        masked = "(start < full_start) | (start >= full_end)" if two_sided else "start >= full_end"
        return replace(limits, results=(masked,))
    lines: list[str] = []
    defines: list[str] = []
    if facts.keys.lower_bound is not None:
        lines.append(f"first = tl.maximum({extreme(facts.keys.lower_bound, prologue, 'least')}, 0) // BN * BN")
        defines.append("first")
    if facts.keys.upper_bound is not None:
        past = expression(linear(op("add", facts.keys.upper_bound, const(1))))
        floor = "first" if defines else "0"
        lines.append(f"stop = tl.maximum(tl.minimum({extreme(past, prologue, 'greatest')}, kv_len), {floor})")
        defines.append("stop")
    if lines:
        lines = ["", "# No row of the tile sees other keys than these.", *lines]
    return Fragment(tuple(lines), ("start + BN > kv_len",), ("BN", "kv_len"), tuple(defines))


def _span(facts: Facts) -> int | None:
    """The width of a window of keys whose ends are as far apart for every query."""
    gaps = [linear(upper) - linear(lower) for lower in facts.keys.lower for upper in facts.keys.upper]
    widths = [gap.constant + 1 for gap in gaps if not gap.terms]
    return max(min(widths), 1) if widths else None


DECODE = KernelText(
    "decode",
    "out and lse of few queries over many keys",
    lambda views: decode_view(views.facts.variant, views.functions, paged=False),
)
DECODE_PAGED = KernelText(
    "decode_paged",
    "out and lse of new queries over keys in a paged cache",
    lambda views: decode_view(views.facts.variant, views.functions, paged=True),
    template="decode",
)
