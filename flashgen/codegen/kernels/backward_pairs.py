"""What the template of the kernel for gradients of learned inputs by the pair needs to know of a variant.

Where each pair has an element of its own, as in a bias [heads, q_len, kv_len], a program that owns a tile of pairs adds
up in registers what all give that share its elements, here those of the batch, and stores each once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from flashgen.analysis.facts import Facts, facts_of
from flashgen.codegen.arguments import new_prologue, q_offset, unspecialized
from flashgen.codegen.backward import BackwardView, arguments_of, reads_of, spread
from flashgen.codegen.kernel_text import KernelText
from flashgen.codegen.kernels.forward import ForwardView
from flashgen.codegen.learned import Owned, SiteTexts, SiteView, owned_pairs
from flashgen.codegen.limits import loop_limits
from flashgen.codegen.pairs import Function, named_apart, pairs
from flashgen.emit.fragments import Fragment
from flashgen.emit.prologue import Prologue
from flashgen.emit.torch import emit
from flashgen.lang.traversal import variables
from flashgen.spec.variant import Variant

# What a kernel reads of the batch element and the head; how many there are of these, and what one is.
_READ = {"b": ("b",), "h": ("h", "kv_h")}
_COUNTS = {"b": ("batch", "batch element"), "h": ("heads", "head")}


@dataclass(frozen=True)
class Axis:
    """How a program goes along the batch, "b", or the heads, "h".

    Elements are another's for each of them ("own"), for each "group" of such that follow one another, for each of a
    "strided" one, or are "shared" by all. The host has the number of groups, and how many belong to one, from `group`.
    """

    name: str
    kind: str
    group: Fragment = field(default_factory=Fragment)

    @property
    def owns(self) -> bool:
        return self.kind != "shared"

    @property
    def shares(self) -> bool:
        return self.kind != "own"

    @property
    def grouped(self) -> bool:
        return self.owns and self.shares

    @property
    def count(self) -> str:
        return _COUNTS[self.name][0]

    @property
    def one(self) -> str:
        return _COUNTS[self.name][1]

    @property
    def owners(self) -> str:
        """How many have elements of their own."""
        return f"{self.name}_groups" if self.grouped else self.count

    @property
    def sharers(self) -> str:
        """How many share elements."""
        return f"sharing_{self.count}" if self.grouped else self.count


@dataclass(frozen=True)
class BackwardPairsView(BackwardView):
    """A kernel that owns tiles of pairs.

    By the `axes`, the batch and the heads, some share elements: a program walks along these for each tile of keys.
    `outside` stands in front of that loop, and behind it the `limits`; the `prologue` stands in it, where it is another
    one for each sharer. Tiles of keys are masked all, unless limits say `which` are.
    """

    sites: tuple[SiteView, ...]
    written: tuple[Function, ...]
    axes: tuple[Axis, ...]
    outside: tuple[str, ...]
    two_sided: bool
    which: bool
    clamps_k: bool

    @property
    def functions(self) -> tuple[Function, ...]:
        return (*super().functions, *self.written)

    @property
    def owning(self) -> tuple[Axis, ...]:
        """Heads first: neighbours on the GPU read what one batch element has."""
        return tuple(axis for axis in self.axes[::-1] if axis.owns)

    @property
    def sharing(self) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.axes if axis.shares)


def backward_pairs_view(
    facts: Facts, forward: ForwardView, known: Sequence[Function]
) -> BackwardPairsView | None:  # fmt: skip
    """The holes of the kernel; None where no learned input is of that kind."""
    owned = owned_pairs(facts)
    if owned is None:
        return None
    shared = {name for axis, names in _READ.items() if axis not in owned.told_apart for name in names}
    outside, limits = _limits(facts, shared)
    view = _view(facts, forward, known, owned, (outside, outside, limits))
    if not view.reads & shared:
        return view
    outside, limits = _limits(facts, shared)
    return _view(facts, forward, known, owned, (outside, outside.fork(), limits))


def _view(
    facts: Facts, forward: ForwardView, known: Sequence[Function], owned: Owned,
    places: tuple[Prologue, Prologue, tuple[str, ...]],
) -> BackwardPairsView:  # fmt: skip
    """The view with statements at these places: in front of the loop, in it, and the limits."""
    variant = facts.variant
    outside, prologue, limits = places
    in_front = outside.lines
    found = pairs(facts, prologue)
    score, mask = (named_apart(function, known, "_by_pair") for function in (found.score, found.mask))
    row = "" if found.row is None else prologue.inline(found.row)
    texts = SiteTexts(variant, prologue, known)
    sites = tuple(texts.site(each) for each in owned.places)
    reads = reads_of(prologue, score, mask) | texts.reads
    axes = tuple(_axis(name, owned) for name in _READ)
    counted = [name for axis in axes if axis.grouped for name in (f"{axis.name}_groups", f"{axis.name}_group")]
    shared = ("splits", *(f"{site.name}_split" for site in sites)) if any(axis.shares for axis in axes) else ()
    return BackwardPairsView(
        score=score,
        score_call="" if score is None else spread(facts, "[BM, BN]", False) + score.call,
        nonlinear=False,
        factor="",
        natural=found.natural,
        without_fma=facts.logits.without_fma,
        prologue=() if prologue is outside else prologue.lines,
        reads=reads,
        q_offset=q_offset(facts),
        arguments=arguments_of(variant, reads - {"batch"}, ()),
        unspecialized=(*unspecialized(variant, reads | {"batch"}, False), "num_rows", "run", *counted, *shared),
        mask=mask,
        shown=found.shown_by(mask).result,
        scheduled=False,
        row=row,
        limits=limits,
        precision=forward.precision,
        sites=sites,
        written=tuple(texts.functions),
        axes=axes,
        outside=outside.lines if prologue is outside else in_front,
        two_sided=bool(facts.keys.lower),
        which=bool(limits) and facts.keys.closed,
        clamps_k=found.clamps_k,
    )


def _axis(name: str, owned: Owned) -> Axis:
    if name in owned.told_apart:
        return Axis(name, "own")
    for group in owned.groups:
        if name in variables(group.axis):
            return Axis(name, "strided" if group.strided else "group", emit([group.size], inlined=True))
    return Axis(name, "shared")


def _limits(facts: Facts, shared: Collection[str]) -> tuple[Prologue, tuple[str, ...]]:
    """A prologue that has what the limits read, and these; none where they would be others for each sharer."""
    prologue = new_prologue(facts)
    if not facts.keys.upper and not facts.keys.lower:
        return prologue, ()
    limits = loop_limits(facts, prologue)
    return (new_prologue(facts), ()) if prologue.reads & {*shared} else (prologue, limits.lines)


def _title(variant: Variant) -> str:
    owned = owned_pairs(facts_of(variant))
    learned = dict.fromkeys(each.site.gather.input for each in owned.places) if owned else ()
    return f"the gradient{'s' * (len(learned) > 1)} of {', '.join(learned)}, where each pair has an element"


BACKWARD_PAIRS = KernelText(
    "backward_pairs", _title, lambda views: backward_pairs_view(views.facts, views["forward"], views.functions)
)
