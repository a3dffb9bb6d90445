"""Tiles all of whose pairs read an input at one place, as far from the diagonal of a clamped relative bias: it is read
once a tile, not once a pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flashgen.analysis.facts import Facts
from flashgen.codegen.pairs import Function
from flashgen.emit.prologue import Prologue
from flashgen.lang.fold import fold
from flashgen.lang.intervals import Ranges
from flashgen.lang.learned import one_place, steps_with_each
from flashgen.lang.nodes import (
    TRUE,
    Expr,
    Gather,
    indices,
    inputs,
    op,
    substitute,
    transform,
    variables,
    walk,
)
from flashgen.lang.show import show
from flashgen.lang.variables import K_FIRST, Q_END, Q_FIRST, Q_LAST, Q_START, K, Q
from flashgen.spec.variant import Variant

# The corners of the tile of queries at hand, which change from step to step where the loop walks along these.
AT_HAND = {Q_FIRST: Q_START, Q_LAST: Q_END}


@dataclass(frozen=True)
class UniformTiles:
    """`test` says of a tile's corners, q_first, q_last, k_first and k_last, whether all its pairs read at one place;
    then `score` is the function for their logits. `condition` is what `test` says, as an expression. `prologue` has the
    statements in front of the loop that either needs.
    """

    test: Function
    score: Function
    condition: Expr
    prologue: Prologue

    @property
    def functions(self) -> tuple[Function, Function]:
        return self.test, self.score

    @property
    def reads(self) -> set[str]:
        """The names that both read, and the statements in front of the loop."""
        return {*self.test.body.reads, *self.score.body.reads, *self.prologue.reads}

    @property
    def lines(self) -> tuple[str, ...]:
        """These statements."""
        return self.prologue.lines


def uniform_score(
    facts: Facts, prologue: Prologue, known: Sequence[Function], along_queries: bool
) -> UniformTiles | None:
    """For a kernel whose loop goes along queries or along keys, after functions that are `known`; None where no tile is
    known to be uniform from its place alone. What it needs in front of the loop stands beside the kernel's own
    `prologue`.
    """
    variant, pair = facts.variant, facts.logits.pair
    reads = [node for node in walk(pair) if isinstance(node, Gather) and {"q", "k"} <= variables(node)]
    places = [one_place(_indices(read, variant, prologue.ranges)) for read in reads]
    if not reads or any(steps_with_each(read) or indices(read) for read in reads):
        return None
    condition: Expr = TRUE
    for place in places:
        if place is None or inputs(place):
            return None
        condition = op("and", condition, place)
    condition = fold(condition)
    test, score = condition, transform(pair, lambda node: _at_corner(node) if node in reads else node)
    if along_queries:
        test, score = (substitute(each, AT_HAND) for each in (test, score))
    prologue = prologue.fork()
    names = ", ".join(dict.fromkeys(show(read, variant.lets) for read in reads))
    found = UniformTiles(
        Function("_is_uniform", prologue.body(test), f"Whether all pairs of a tile read at one place: {names}."),
        Function("_uniform_score", prologue.body(score), "The same as _score for such a tile."),
        condition,
        prologue,
    )
    suffix = "" if all(f.says_the_same(g) for f in found.functions for g in known if f.name == g.name) else "_by_key"
    test_function, score_function = (replace(f, name=f.name + suffix) for f in found.functions)
    return replace(found, test=test_function, score=score_function)


def _indices(read: Gather, variant: Variant, ranges: Ranges) -> list[Expr]:
    sizes = next(tensor.dims for tensor in variant.inputs if tensor.name == read.input)
    return [ranges.kept_inside(read, axis, dim.size) for axis, dim in enumerate(sizes)]


def _at_corner(read: Expr) -> Expr:
    return fold(substitute(read, {Q: Q_FIRST, K: K_FIRST}))
