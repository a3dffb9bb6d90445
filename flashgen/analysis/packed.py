"""A variant whose sequences lie one after the other, each with lengths of its own."""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.analysis.facts import Facts
from flashgen.lang.nodes import TRUE


@dataclass(frozen=True)
class PackedFacts(Facts):
    """What follows where every sequence has lengths of its own: no two have the same tiles."""

    @property
    def mask_by_batch(self) -> bool:
        return self.variant.mask is not TRUE
