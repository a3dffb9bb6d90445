"""A variant where query heads share a tile: its rows differ in their head as they do in their position."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from flashgen.analysis.facts import Facts, facts_of
from flashgen.lang.bounds import KeyRange
from flashgen.lang.log2 import Logits
from flashgen.lang.nodes import Expr
from flashgen.lang.traversal import substitute
from flashgen.lang.variables import ROW_H, H
from flashgen.spec.variant import Variant


@dataclass(frozen=True)
class RowFacts(Facts):
    """What follows for one head, said of the head of each row. `own` are the facts of one head."""

    own: Facts

    @cached_property
    def keys(self) -> KeyRange:
        found = self.own.keys
        return KeyRange(tuple(map(by_row, found.lower)), tuple(map(by_row, found.upper)), by_row(found.residual))

    @cached_property
    def logits(self) -> Logits:
        found = self.own.logits
        row, scaled = (each and by_row(each) for each in (found.row, found.scaled))
        return Logits(by_row(found.pair), row, scaled, found.natural)


def by_row(expr: Expr) -> Expr:
    """The expression with the head of each row in place of the program's."""
    return substitute(expr, {H: ROW_H})


def row_facts(variant: Variant) -> RowFacts:
    """The facts of a variant where heads share a tile."""
    lets = tuple((name, by_row(expr)) for name, expr in variant.lets)
    rows = replace(variant, score=by_row(variant.score), mask=by_row(variant.mask), lets=lets)
    return RowFacts(rows, facts_of(variant))
