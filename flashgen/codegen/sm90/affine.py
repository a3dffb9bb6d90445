"""Scores that are dot products and a term affine in k, which goes into the sums of these."""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.analysis.facts import Facts
from flashgen.emit.prologue import Prologue
from flashgen.lang.log2 import affine_in_k
from flashgen.lang.nodes import op
from flashgen.lang.traversal import substitute
from flashgen.lang.variables import K_FIRST, K


@dataclass(frozen=True)
class AffineBias:
    """What scores that are dot products and a term affine in k add, as texts.

    `per_key` is by how much from one key to the next, in units of the dot products; `shift` how much for the first key
    of a tile, in units of log2.
    """

    per_key: str
    shift: str


def affine_bias(facts: Facts, prologue: Prologue) -> AffineBias | None:
    """What such scores add; None for others."""
    found = None if facts.logits.natural else affine_in_k(facts.logits.pair)
    if found is None:
        return None
    prologue.name(found.scaled, "qk_scale")
    shift = prologue.inline(substitute(found.column, {K: K_FIRST}), spelled={"k_first": "start"})
    per_key = prologue.inline(op("truediv", found.per_key, found.scaled))
    return AffineBias(per_key, shift)
