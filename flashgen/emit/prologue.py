"""From the expression graph to Triton.

Inside a kernel `q` is a [BM, 1] and `k` a [1, BN] tile of int32 positions, or [1, BM] and [BN, 1], so that broadcasting
does the rest and an expression reads as in the spec. Values are computed at the lowest level that they need: one number
per program, one per row, one per column, one per pair; what the loop does not change is hoisted in front of it by the
`Prologue`: all that is free of k where the kernel walks along keys, all that is free of q where it walks along queries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from flashgen.analysis.levels import COL, Level, floats_at_leaves, shared
from flashgen.emit.names import EMITTED, Statements, suggest
from flashgen.emit.writer import Facts, PairWriter, PrologueWriter, Tensor
from flashgen.lang.intervals import Ranges
from flashgen.lang.nodes import Expr


@dataclass(frozen=True)
class Body:
    """Statements and the value they lead to; `free` are the names that they take from outside, `q k` included, and
    `defined` those that they make.
    """

    lines: tuple[str, ...]
    results: tuple[str, ...]
    free: tuple[str, ...]
    defined: tuple[str, ...] = ()


class Prologue:
    """What is computed once a program, in front of the loop, and shared by all bodies emitted after it."""

    def __init__(
        self,
        ranges: Ranges,
        tensors: Mapping[str, Tensor],
        lets: Sequence[tuple[str, Expr]] = (),
        reserved: Collection[str] = (),
        walked: Level = COL,
        approximate: bool = False,
        words: Collection[str] = (),
    ) -> None:
        """`tensors` describes the inputs, `lets` the names that the spec gave to subexpressions.

        `reserved` are names that no new value may take: the kernel's arguments from the spec, and so are the `words`
        that its template has. `walked` is the axis
        of the loop. `approximate` takes functions from the GPU where it has an approximation of them.
        """
        facts = Facts(ranges, tensors, walked=walked, approximate=approximate, words=frozenset(words) - EMITTED)
        facts = replace(facts, lets=tuple((name, facts.plain(expr)) for name, expr in lets))
        self._begin(facts, Statements(taken={*facts.words, *reserved}))

    def _begin(self, facts: Facts, statements: Statements) -> None:
        self._facts, self._statements = facts, statements
        self._writer = PrologueWriter(facts, statements)

    @property
    def ranges(self) -> Ranges:
        return self._facts.ranges

    @property
    def lines(self) -> Sequence[str]:
        """The statements so far."""
        return self._statements.lines

    @property
    def free(self) -> set[str]:
        """The names that the statements read from outside."""
        return self._statements.free

    @property
    def helpers(self) -> set[str]:
        """The names of the helper functions that any text from here calls."""
        return self._facts.helpers

    def name(self, expr: Expr, preferred: str | None = None) -> str:
        """The name under which an expression that the loop does not change is at hand; computes it first if need be."""
        return self._writer.name(self._facts.plain(expr), preferred)

    def inline(self, expr: Expr) -> str:
        """An expression that the loop does not change as text of its own, its loads and reductions computed before."""
        expr = self._facts.plain(expr)
        self._writer.take_apart(expr)
        return self._statements.names.get(expr) or str(self._writer.spelled_out(expr))

    def body(
        self,
        *roots: Expr,
        inlined: bool = False,
        given: Mapping[Expr, str] = MappingProxyType({}),
        hidden: Collection[str] = (),
    ) -> Body:
        """Statements that compute the roots from q, k, qk, what the prologue holds, and what is `given` by name.

        They are for a function of their own, or `inlined` for the kernel itself, where they must hide nothing, nor take
        a name that is `hidden` from the prologue: one that other inlined statements made.
        """
        roots = tuple(floats_at_leaves(self._facts.plain(root), self.ranges) for root in roots)
        given = {self._facts.plain(expr): name for expr, name in given.items()}
        # Written twice: once all that the body takes from the prologue has a name, none of its own may hide it.
        avoid = {*self._written(roots, given).free, *hidden}
        return self._written(roots, given, avoid | self.free | self._statements.taken if inlined else avoid)

    def fork(self) -> Prologue:
        """A further place for statements, the epilogue, where everything computed here is at hand."""
        here, there = self._statements, Prologue.__new__(Prologue)
        there._begin(self._facts, Statements({*here.taken}, here.free, names={**here.names}))
        return there

    def _written(self, roots: Sequence[Expr], given: Mapping[Expr, str], avoid: Collection[str] = ()) -> Body:
        statements = Statements(taken={*self._facts.words, *avoid})
        writer = PairWriter(self._facts, statements, self._writer, given)
        for node in shared(roots, self._facts.lets, self._facts.walked, given):
            statements.assign(node, suggest(node, self._facts.lets), str(writer.spelled_out(node)))
        results = tuple(str(writer.text(root)) for root in roots)
        free, defined = tuple(sorted(statements.free)), tuple(statements.names.values())
        return Body(tuple(statements.lines), results, free, defined)
