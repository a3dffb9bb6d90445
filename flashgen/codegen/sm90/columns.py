"""What the Hopper forward kernel loads for each key alone, before it has the scores."""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.analysis.facts import Facts
from flashgen.analysis.levels import COL, level
from flashgen.codegen.pairs import Function, Given
from flashgen.emit.fragments import Fragment
from flashgen.emit.prologue import Prologue
from flashgen.lang.nodes import Expr, Gather
from flashgen.lang.traversal import indices, walk


@dataclass(frozen=True)
class Columns:
    """What scores and masks read of each key alone: statements that load it, for the score and for the mask besides.

    `given` has the names, `reads` what the statements read.
    """

    given: Given
    of_score: Fragment
    of_mask: tuple[str, ...]
    reads: frozenset[str]

    def used(self, function: Function | None) -> list[str]:
        """The names that a function takes."""
        return [] if function is None else [name for name in self.given.values() if name in function.body.reads]


def columns_of(facts: Facts, prologue: Prologue) -> Columns:
    """Loads that vary along keys alone. A thread that makes them for its pairs would make those of a quarter of all."""
    per_tile, given = prologue.fork(spelled={"k": "keys"}), dict[Expr, str]()
    ends = []
    for expr in (facts.logits.pair, facts.variant.mask):
        for node in walk(expr):
            if isinstance(node, Gather) and level(node) == COL and not indices(node) and node not in given:
                given[node] = per_tile.name(node)
        ends.append(len(per_tile.lines))
    first, lines = ends[0], per_tile.lines
    of_score = Fragment(lines[:first], defines=per_tile.defines[:first])
    reads = frozenset(per_tile.reads) if given else frozenset[str]()
    return Columns(given, of_score, lines[first:], reads)
