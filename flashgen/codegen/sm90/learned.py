"""How the Hopper kernel for dK and dV adds up the gradients of learned inputs: templates/backward_kv_sm90_learned.

It has ds_out in registers. What is one sum for all pairs of a head or of a tile costs it an addition a pair; the tiles
whose pairs do not share one element are left to the kernel of templates/learned.py.jinja.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashgen.analysis.facts import Facts, facts_of
from flashgen.codegen.learned import SiteTexts, summed_by_key
from flashgen.codegen.naming import mangled, mangled_names
from flashgen.codegen.pairs import Function
from flashgen.codegen.sm90.uniform import AT_HAND
from flashgen.emit.prologue import Prologue
from flashgen.lang.learned import Placement, Sharing
from flashgen.lang.nodes import Expr
from flashgen.lang.show import show
from flashgen.lang.traversal import substitute
from flashgen.spec.variant import Variant


@dataclass(frozen=True)
class SiteSm90:
    """One place where a learned input is read. Every string is Triton text.

    `gradient` is that of the pairs of a tile, from `ds_out`; it gets the name `value` where it is not that itself.
    Where `by_tile`, all pairs of a tile share the element at `offset` if `uniform` says so, after `lines`, which is
    then called `shared`; else all pairs of a head do. In uniform tiles (see `UniformTiles`) they always share the
    element at `corner`, after `corner_lines`; `if_uniform` says that they do so in no others. `sums` are those of the
    element that is at hand, number `at`.
    """

    input: str
    read: str
    pointer: str
    by_tile: bool
    if_uniform: bool
    gradient: str
    value: str
    sums: str
    at: str
    shared: str
    lines: tuple[str, ...]
    uniform: str
    offset: str
    corner_lines: tuple[str, ...]
    corner: str


@dataclass(frozen=True)
class LearnedSm90:
    """All places. `functions` are their helpers, `prologue` statements in front of the loop over tiles, `epilogue`
    those before what is added behind it.

    `reads` are the names that the text reads.
    """

    sites: tuple[SiteSm90, ...]
    functions: tuple[Function, ...]
    prologue: tuple[str, ...]
    epilogue: tuple[str, ...]
    reads: frozenset[str]

    @property
    def pointers(self) -> tuple[str, ...]:
        """The kernel's arguments for them."""
        return tuple(site.pointer for site in self.sites)

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(site.input for site in self.sites))

    def sites_in(self, kind: str) -> tuple[SiteSm90, ...]:
        """The places whose element all pairs of a tile may share; tiles are "mixed", "full" or "uniform"."""
        return tuple(site for site in self.sites if kind != "full" or not site.if_uniform)

    @property
    def by_tile(self) -> bool:
        return any(site.by_tile for site in self.sites)


def learned_sm90(facts: Facts, prologue: Prologue, uniform_tile: Expr | None) -> LearnedSm90 | None:
    """Work the texts out; None where the kernel adds up nothing. What they need before the loop goes to `prologue`.

    `uniform_tile` says which tiles are uniform, None where none are known to be.
    """
    if not summed_by_key(facts):
        return None
    texts = SiteTexts(facts.variant, prologue)
    sites = tuple(_site(each, facts.variant, texts, prologue, uniform_tile) for each in facts.placements)
    return LearnedSm90(
        sites,
        tuple(texts.functions),
        prologue.lines,
        texts.epilogue.lines,
        frozenset(texts.reads | texts.epilogue.reads | prologue.reads),
    )


def inputs_summed_by_key(variant: Variant) -> tuple[str, ...]:
    """Whose gradients the Hopper kernel for dK and dV adds up: for each place the input, by its name in the spec.

    None where each has a default, such as ALiBi's slopes: few learn these.
    """
    facts = facts_of(mangled(variant))
    if not summed_by_key(facts):
        return ()
    spec = {inside: name for name, inside in mangled_names(variant).items()}
    names = tuple(spec[each.site.gather.input] for each in facts.placements)
    return names if any(t.name in names and t.default is None for t in variant.inputs) else ()


def _site(
    found: Placement, variant: Variant, texts: SiteTexts, prologue: Prologue, uniform_tile: Expr | None
) -> SiteSm90:  # fmt: skip
    name = texts.name(found.site.gather)
    gradient = texts.gradient(name, found.site, "_by_key")
    lines: Sequence[str] = ()
    corner_lines: Sequence[str] = ()
    uniform = corner = ""
    if found.sharing is Sharing.ALL:
        offset = texts.epilogue.inline(found.offset)
    else:
        assert found.uniform is not None
        condition, place = (substitute(each, AT_HAND) for each in (found.uniform, found.corner))
        body = prologue.body(condition, place, inlined=True)
        lines, (uniform, offset) = body.lines, body.results
        at_corner = prologue.body(place, inlined=True)
        corner_lines, (corner,) = at_corner.lines, at_corner.results
        texts.reads |= {*body.reads}
    return SiteSm90(
        input=found.site.gather.input,
        read=show(found.site.gather, variant.lets),
        pointer=f"{name}_ptr",
        by_tile=found.sharing is not Sharing.ALL,
        if_uniform=uniform_tile is not None and found.uniform is uniform_tile,
        gradient=gradient,
        value="ds_out" if gradient == "ds_out" else name,
        sums=f"{name}_sums",
        at=f"{name}_at",
        shared=f"{name}_shared",
        lines=tuple(lines),
        uniform=uniform,
        offset=offset,
        corner_lines=tuple(corner_lines),
        corner=corner,
    )
