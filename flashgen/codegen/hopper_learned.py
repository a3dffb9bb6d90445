"""What templates/hopper_learned.py.jinja needs to know: how the Hopper kernel for dK and dV adds up the gradients of
learned inputs.

It has ds_out in registers. What is summed over rows, keys or whole tiles costs it an addition a pair; the tiles whose
pairs do not share one element are left to the kernel of templates/learned.py.jinja.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashgen.codegen.forward import Function
from flashgen.codegen.hopper import in_gluon
from flashgen.codegen.learned import SiteTexts, placements, summed_by_key
from flashgen.lang.learned import Placement, Sharing
from flashgen.lang.nodes import Expr, Type, substitute, var
from flashgen.lang.show import show
from flashgen.lang.triton_emitter import Prologue
from flashgen.spec.variant import Variant

# The corners of the tile at hand, which change from step to step where the loop walks along queries.
_CORNERS: dict[Expr, Expr] = {
    var("q_first", Type.INT): var("q_start", Type.INT),
    var("q_last", Type.INT): var("q_end", Type.INT),
}


@dataclass(frozen=True)
class HopperSite:
    """One place where a learned input is read. Every string is Triton text.

    `gradient` is that of the pairs of a tile, from `ds_out`; it gets the name `value` where it is not that itself.
    `sharing` is ALL, COLUMN or TILE: after `lines`, all pairs of a tile share the element at `offset` where `uniform`.
    `sums` are those of the element numbered `at`; of all, or of each key. `shared` names what `uniform` says.
    """

    input: str
    read: str
    pointer: str
    sharing: str
    gradient: str
    value: str
    sums: str
    at: str
    shared: str
    lines: tuple[str, ...]
    uniform: str
    offset: str


@dataclass(frozen=True)
class HopperLearned:
    """All places. `functions` are their helpers, `epilogue` statements before what is added after each head.

    `free` are the names that the text reads.
    """

    sites: tuple[HopperSite, ...]
    functions: tuple[Function, ...]
    epilogue: tuple[str, ...]
    free: frozenset[str]

    @property
    def pointers(self) -> tuple[str, ...]:
        """The kernel's arguments for them."""
        return tuple(site.pointer for site in self.sites)

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(site.input for site in self.sites))

    @property
    def by_thread(self) -> bool:
        return any(site.sharing != "COLUMN" for site in self.sites)

    @property
    def by_tile(self) -> bool:
        return any(site.sharing == "TILE" for site in self.sites)


def hopper_learned(variant: Variant, prologue: Prologue) -> HopperLearned | None:
    """Work the texts out; None where the kernel adds up nothing. What they need before the loop: see `prologue`."""
    found = placements(variant)
    if not found or not summed_by_key(variant, found):
        return None
    texts = SiteTexts(variant, prologue)
    sites = tuple(_site(each, variant, texts, prologue) for each in found)
    return HopperLearned(
        sites,
        tuple(texts.functions),
        in_gluon(texts.epilogue.lines),
        frozenset(texts.free | texts.epilogue.free),
    )


def _site(found: Placement, variant: Variant, texts: SiteTexts, prologue: Prologue) -> HopperSite:
    name = texts.name(found.site.gather)
    gradient = texts.gradient(name, found.site, "_by_key")
    lines: Sequence[str] = ()
    uniform = ""
    sharing = found.sharing.name
    if found.sharing in (Sharing.ALL, Sharing.COLUMN):
        offset = texts.epilogue.inline(found.offset)
    else:
        assert found.uniform is not None
        body = prologue.body(*(substitute(e, _CORNERS) for e in (found.uniform, found.corner)), inlined=True)
        lines, (uniform, offset), sharing = body.lines, body.results, "TILE"
        texts.free |= {*body.free}
    return HopperSite(
        input=found.site.gather.input,
        read=show(found.site.gather, variant.lets),
        pointer=f"{name}_ptr",
        sharing=sharing,
        gradient=gradient,
        value="ds_out" if gradient == "ds_out" else name,
        sums=f"{name}_sums",
        at=f"{name}_at",
        shared=f"{name}_shared",
        lines=in_gluon(lines),
        uniform="".join(in_gluon([uniform])),
        offset="".join(in_gluon([offset])),
    )
