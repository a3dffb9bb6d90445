"""What the template of the kernel for gradients of learned inputs by the pair needs to know of a variant.

Where each pair has an element of its own, as in a bias [heads, q_len, kv_len], a program that owns a tile of pairs adds
up in registers what all give that share its elements, here those of the batch, and stores each once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from flashgen.analysis.facts import Facts
from flashgen.codegen.arguments import new_prologue, q_offset, unspecialized
from flashgen.codegen.backward import BackwardView, arguments_of, reads_of, spread
from flashgen.codegen.kernel_text import KernelText
from flashgen.codegen.kernels.forward import ForwardView
from flashgen.codegen.learned import SiteTexts, SiteView, learned_inputs, owners_of_pairs
from flashgen.codegen.limits import loop_limits
from flashgen.codegen.pairs import Function, named_apart, pairs
from flashgen.emit.prologue import Prologue
from flashgen.spec.variant import Variant

# What a kernel reads of the batch element and the head, by what tells those who own elements apart.
_READ = {"b": ("b",), "h": ("h", "kv_h")}


@dataclass(frozen=True)
class BackwardPairsView(BackwardView):
    """A kernel that owns tiles of pairs.

    `owners` are those of "b" and "h" by which elements differ, "bh" both; the others share them, and a program walks
    along these for each tile of keys. `outside` stands in front of that loop, and behind it the `limits`; the
    `prologue` stands in it, where it is another one for each sharer. Without limits all tiles are masked.
    """

    sites: tuple[SiteView, ...]
    written: tuple[Function, ...]
    owners: str
    outside: tuple[str, ...]
    two_sided: bool
    clamps_k: bool

    @property
    def functions(self) -> tuple[Function, ...]:
        return (*super().functions, *self.written)


def backward_pairs_view(
    facts: Facts, forward: ForwardView, known: Sequence[Function]
) -> BackwardPairsView | None:  # fmt: skip
    """The holes of the kernel; None where not all learned inputs are of that kind."""
    owners = owners_of_pairs(facts)
    if owners is None:
        return None
    shared = {name for axis, names in _READ.items() if axis not in owners for name in names}
    outside, limits = _limits(facts, shared)
    view = _view(facts, forward, known, owners, (outside, outside, limits))
    if not view.reads & shared:
        return view
    outside, limits = _limits(facts, shared)
    return _view(facts, forward, known, owners, (outside, outside.fork(), limits))


def _view(
    facts: Facts, forward: ForwardView, known: Sequence[Function], owners: frozenset[str],
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
    sites = tuple(texts.site(each) for each in facts.placements)
    reads = reads_of(prologue, score, mask) | texts.reads
    shared = ("splits", *(f"{site.name}_split" for site in sites)) if owners != {"b", "h"} else ()
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
        unspecialized=(*unspecialized(variant, reads | {"batch"}, False), "num_rows", "run", *shared),
        mask=mask,
        shown=found.shown_by(mask).result,
        scheduled=False,
        row=row,
        limits=limits,
        precision=forward.precision,
        sites=sites,
        written=tuple(texts.functions),
        owners="".join(sorted(owners)),
        outside=outside.lines if prologue is outside else in_front,
        two_sided=bool(facts.keys.lower),
        clamps_k=found.clamps_k,
    )


def _limits(facts: Facts, shared: Collection[str]) -> tuple[Prologue, tuple[str, ...]]:
    """A prologue that has what the limits read, and these; none where they would be others for each sharer."""
    prologue = new_prologue(facts)
    if not facts.keys.upper and not facts.keys.lower:
        return prologue, ()
    limits = loop_limits(facts, prologue)
    return (new_prologue(facts), ()) if prologue.reads & {*shared} else (prologue, limits.lines)


def _title(variant: Variant) -> str:
    learned = learned_inputs(variant)
    return f"the gradient{'s' * (len(learned) > 1)} of {', '.join(learned)}, where each pair has an element"


BACKWARD_PAIRS = KernelText(
    "backward_pairs", _title, lambda views: backward_pairs_view(views.facts, views["forward"], views.functions)
)
