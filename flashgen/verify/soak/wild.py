"""Random well-typed expressions as texts, with bounds of what they may come to.

The bounds keep a draw well posed:
- integers stay within 32 bits;
- what jumps (comparisons, floor, // and % of floats) reads floats that every precision holds exactly, never `score`;
- functions are used inside their domains, and exp where it is finite.
Indices may leave their tensors, divisors may be 0 and shift counts negative: the language says what that gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from flashgen.verify.soak.pieces import DEEPEST, INT32, Piece, Scope, number
from flashgen.verify.soak.rules import RULES


class Wild:
    """Draws expressions from a scope."""

    def __init__(self, random: Random, scope: Scope, smooth: bool) -> None:
        self.random, self.scope, self.smooth = random, scope, smooth

    def draw(self, kind: str, depth: int) -> Piece:
        if depth <= 0 or self.random.random() < 0.12:
            return self._leaf(kind, min(depth, 0))
        for _ in range(8):
            rule = self.pick(RULES[kind])
            found = rule(self, depth - 1)
            if found is not None and found.size <= (INT32 if kind != "float" else 1e5) and len(found.text) < 400:
                return found
        return self._leaf(kind, 0)

    def exact(self, depth: int) -> Piece:
        """A float that is exact."""
        found = self.draw("exact", depth)
        assert found.exact
        return found

    def element(self, kind: str, depth: int) -> Piece | None:
        """An element of an input, at any index."""
        tensors = [t for t in self.scope.tensors if t.type == kind and (self.smooth or not t.smooth)]
        if not tensors:
            return None
        tensor = self.pick(tensors)
        indices = [self._index(extent, depth) for extent in tensor.extents]
        self.scope.used.add(tensor.name)
        text = f"{tensor.name}[{', '.join(piece.text for piece in indices)}]" if indices else tensor.name
        return Piece(text, kind, tensor.low, tensor.high, tensor.exact, tensor.smooth, tight=True)

    def _index(self, extent: int, depth: int) -> Piece:
        """An index of an axis: a position that belongs there, something near it, or anything."""
        ints = [s for s in self.scope.scalars if s.type == "int"]
        fitting = [s for s in ints if s.low >= 0 and s.high < extent and s.high > s.low]
        roll = self.random.random()
        if fitting and roll < 0.5:
            return self._named(self.pick(fitting))
        if roll < 0.8:
            inner = self.masked().draw("int", min(depth - 1, 1))
            if self.random.random() < 0.5:
                return Piece(f"clamp({inner.text}, 0, {extent - 1})", "int", 0, extent - 1)
            return Piece(f"{inner} % {extent}", "int", 0, extent - 1)
        return self.masked().draw("int", min(depth - 1, 1))

    def masked(self) -> Wild:
        """The expressions without what has a gradient: for indices and tests."""
        return Wild(self.random, self.scope, False)

    def _leaf(self, kind: str, depth: int) -> Piece:
        """A name, a number, or an element of an input, whose indices are leaves again down to a depth."""
        kind = "float" if (wants_exact := kind == "exact") else kind
        if depth > DEEPEST and self.random.random() < 0.3:
            found = self.element(kind, depth)
            if found is not None and (found.exact or not wants_exact):
                return found
        fitting = [s for s in self.scope.scalars if s.type == kind and (self.smooth or not s.smooth)]
        fitting = [s for s in fitting if s.exact or not wants_exact]
        if fitting and self.random.random() < 0.8:
            return self._named(self.pick(fitting))
        return self.constant(kind)

    def _named(self, piece: Piece) -> Piece:
        self.scope.used.add(piece.text)
        return piece

    def constant(self, kind: str) -> Piece:
        if kind == "bool":
            value: bool | int | float = self.random.random() < 0.5
            return Piece(self.pick(["True", "true"] if value else ["False", "false"]), "bool", tight=True)
        if kind == "int":
            value = self.pick([0, 1, 2, 3, 7, 16, 31, 64, 100, 255, 1000, -1, -2, -5, self.random.randint(-300, 300)])
            return number(value)
        return number(self.pick([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, -0.5, -3.0, self.random.randint(-80, 80) / 4]))

    def pick(self, items: Sequence[Any]) -> Any:
        return self.random.choice(items)

    def any_number(self, depth: int) -> Piece:
        return self.draw(self.pick(["int", "float"]), depth)

    def exact_number(self, depth: int) -> Piece:
        return self.draw(self.pick(["int", "exact"]), depth)
