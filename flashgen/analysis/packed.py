"""A variant whose sequences lie one after the other, each with lengths of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from flashgen.analysis.facts import Facts
from flashgen.lang.learned import KV_LEN, Q_LEN, Own, Placement, placement
from flashgen.lang.nodes import TRUE, Type, substitute, var

# A tensor of no sequence alone has room for the longest.
_ALONE = Own(TRUE, "")
_LONGEST = {Q_LEN: var("max_seqlen_q", Type.INT), KV_LEN: var("max_seqlen_k", Type.INT)}


@dataclass(frozen=True)
class PackedFacts(Facts):
    """What follows where every sequence has lengths of its own: no two have the same tiles."""

    @property
    def mask_by_batch(self) -> bool:
        return self.variant.mask is not TRUE

    @cached_property
    def placements(self) -> tuple[Placement, ...]:
        """As of one sequence; the host knows no lengths, by which programs could tell that none of them meet."""
        sizes = {tensor.name: [dim.size for dim in tensor.dims] for tensor in self.variant.inputs}
        found = []
        for name, sites in self.gradients.sites:
            room = [substitute(size, _LONGEST) for size in sizes[name]]
            found += [placement(site, sizes[name], self.ranges, room) for site in sites]
        return tuple(replace(each, own=each.own if each.own == _ALONE else None) for each in found)
