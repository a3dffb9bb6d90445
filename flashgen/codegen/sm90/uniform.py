"""Tiles all of whose pairs read an input at one place, as far from the diagonal of a clamped relative bias: it is read
once a tile, not once a pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flashgen.analysis.facts import Facts
from flashgen.codegen.pairs import NOTHING, Function, Given, named_apart
from flashgen.codegen.sm90.keys import KeyTiles
from flashgen.emit.prologue import Prologue
from flashgen.lang.nodes import Expr
from flashgen.lang.show import show
from flashgen.lang.traversal import substitute
from flashgen.lang.variables import Q_END, Q_FIRST, Q_LAST, Q_START

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

    def logits(self, spread: str, **renamed: str) -> str:
        """The logits of a uniform tile; `spread` is added to what would be less than a whole one."""
        return ("" if "qk" in self.score.body.reads else spread) + self.score.call_with(renamed)

    @property
    def reads(self) -> set[str]:
        """The names that both functions read, and the statements in front of the loop."""
        return {*self.test.body.reads, *self.score.body.reads, *self.prologue.reads}

    @property
    def lines(self) -> tuple[str, ...]:
        """The statements in front of the loop."""
        return self.prologue.lines


@dataclass(frozen=True)
class KeyTileTest:
    """The kernel's function `name` that finds, by a number i, whether there is a tile of keys and it is uniform.

    It takes `names` beside the number, finds the tile's first key by `start` and asks `test`.
    """

    name: str
    names: tuple[str, ...]
    start: str
    test: Function

    @property
    def asks_for_queries(self) -> bool:
        """Whether it must see to it that there are queries at all: a tile's corners may lie behind the last one."""
        return {"q_first", "q_last"} <= {*self.names}

    @property
    def call(self) -> str:
        return f"{self.name}(i, {', '.join(self.names)}, BN)"


def key_tile_test(
    uniform: UniformTiles, keys: KeyTiles | None, start: str, known: KeyTileTest | None = None, suffix: str = ""
) -> KeyTileTest:
    """The test of a kernel whose loop goes along the tiles `keys`, all of them where that is None.

    It goes by another name, with the `suffix`, where it is not the one that is `known`.
    """
    read = sorted({*uniform.test.body.reads} - {"k_first", "k_last"} | {"kv_len"})
    names = tuple(dict.fromkeys(("num_tiles", *(keys.placed_by if keys else ()), *read)))
    found = KeyTileTest("_is_uniform_key_tile", names, start, uniform.test)
    return found if known in (None, found) else replace(found, name=found.name + suffix)


def uniform_score(
    facts: Facts, prologue: Prologue, known: Sequence[Function], *, along_queries: bool, pair: Expr | None = None,
    given: Given = NOTHING,
) -> UniformTiles | None:  # fmt: skip
    """For a kernel whose loop goes along queries or along keys, after functions that are `known`; None where no tile is
    known to be uniform from its place alone. What it needs in front of the loop stands beside the kernel's own
    `prologue`. `pair` is what its score computes, the logit by default; what is `given` has a name.
    """
    uniform = facts.uniform
    if uniform is None:
        return None
    test, score = uniform.condition, uniform.in_tile(facts.logits.pair if pair is None else pair)
    if along_queries:
        test, score = (substitute(each, AT_HAND) for each in (test, score))
    prologue = prologue.fork()
    names = ", ".join(dict.fromkeys(show(read, facts.variant.lets) for read in uniform.reads))
    suffix = "_by_key" if along_queries else "_by_query"
    asks = Function("_is_uniform", prologue.body(test), f"Whether all pairs of a tile read at one place: {names}.")
    scores = Function("_uniform_score", prologue.body(score, given=given), "The same as _score for such a tile.")
    return UniformTiles(
        named_apart(asks, known, suffix), named_apart(scores, known, suffix), uniform.condition, prologue
    )
