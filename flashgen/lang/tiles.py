"""Interval arithmetic over a tile: what can be said of a mask on all pairs (q, k) of a tile from its corners.

The tile holds q_first <= q <= q_last and k_first <= k <= k_last. The result is again expressions, of those four, so
that a kernel evaluates them once a tile. Gathered inputs enter through their least and greatest value over the tile's
rows or columns. Where nothing can be said, the answer is doubt: not all, maybe some. So it is where a float is NaN,
which no order has a place for, or infinite, of which sums and products may make NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce

from flashgen.lang.fold import fold, simplify
from flashgen.lang.intervals import Ranges, assumed
from flashgen.lang.linear import Linear, expression, linear
from flashgen.lang.magnitudes import is_surely_finite
from flashgen.lang.nodes import (
    COMPARISONS,
    FALSE,
    TRUE,
    Const,
    Expr,
    Gather,
    Op,
    Reduction,
    Type,
    const,
    gather,
    op,
    reduction,
)
from flashgen.lang.tile_rules import RULES, UNKNOWN, Ends, Range, ordered
from flashgen.lang.traversal import bottom_up, variables
from flashgen.lang.variables import K_FIRST, K_LAST, Q_FIRST, Q_LAST, K, Q

# Where each of a pair's positions begins and ends.
CORNERS = {Q: (Q_FIRST, Q_LAST), K: (K_FIRST, K_LAST)}


@dataclass(frozen=True)
class TileTruth:
    """`every`: surely each pair of the tile is visible; `some`: possibly one is. Exact only where they agree."""

    every: Expr
    some: Expr


def tile_truth(mask: Expr, ranges: Ranges | None = None) -> TileTruth:
    """What the corners of a tile say of a bool expression; without `ranges`, of inputs whose integers have 32 bits."""
    found = Tiles(ranges or assumed()).of(mask)
    return TileTruth(fold(found.low or FALSE), fold(TRUE if found.high is None else found.high))


@dataclass
class Tiles:
    """Works the ranges of expressions out, each node once."""

    ranges: Ranges
    _known: dict[Expr, Range] = field(default_factory=dict)
    _reduced: dict[Expr, bool] = field(default_factory=dict)
    _finite: dict[Expr, Expr] = field(default_factory=dict)

    def of(self, expr: Expr) -> Range:
        return bottom_up(expr, self._known, self._compute)

    def _compute(self, expr: Expr) -> Range:
        if self._is_end(expr):
            return CORNERS_OF.get(expr) or Range(_over_tile("tile_min", expr), _over_tile("tile_max", expr))
        if "score" in variables(expr):
            return UNKNOWN
        if isinstance(expr, Gather):
            return self._gather(expr)
        if self.ranges.may_wrap(expr):
            return UNKNOWN
        if isinstance(expr, Reduction):
            return self._reduction(expr)
        assert isinstance(expr, Op)
        if expr.type is Type.INT and expr.name in ("add", "sub", "neg", "mul"):
            form = linear(expr)
            if form.terms != {expr: 1}:
                return self._sum(form)
        if expr.name in COMPARISONS:
            return self._compare(expr)
        if expr.type is Type.BOOL:
            return self._logic(expr)
        return self._arithmetic(expr)

    def _is_end(self, expr: Expr) -> bool:
        """Whether the range is that of a value free of q and k, of a position, or of what is reduced as it is."""
        axes = variables(expr) & {"q", "k"}
        return not axes or (len(axes) == 1 and (expr in CORNERS_OF or self._needs_reduction(expr)))

    def _needs_reduction(self, expr: Expr) -> bool:
        """Along one axis a reduction is exact, and needed wherever corners alone do not give the range."""
        return bottom_up(expr, self._reduced, self._has_no_corners)

    def _has_no_corners(self, node: Expr) -> bool:
        if isinstance(node, Gather | Reduction):
            return True
        is_bent = isinstance(node, Op) and (not _monotone(node) or self.ranges.may_wrap(node))
        return is_bent or any(self._reduced[child] for child in node.children)

    def _sum(self, form: Linear) -> Range:
        low = high = Linear({}, form.constant)
        for atom, coefficient in form.terms.items():
            ends = self.of(atom).ends
            if ends is None:
                return UNKNOWN
            least, greatest = ends if coefficient > 0 else reversed(ends)
            low += linear(least) * coefficient
            high += linear(greatest) * coefficient
        return Range(expression(low), expression(high))

    def _gather(self, expr: Gather) -> Range:
        """Along both axes at once: known where the indices are the same for the whole tile."""
        indices = self._ends_of(expr.indices)
        if expr.type is not Type.BOOL or indices is None:
            return UNKNOWN
        same: Expr = TRUE
        for low, high in indices:
            if low is not high:
                same = op("and", same, op("eq", low, high))
        element = gather(expr.input, tuple(low for low, _ in indices), expr.type)
        return Range(fold(op("and", same, element)), fold(op("or", op("not", same), element)))

    def _reduction(self, expr: Reduction) -> Range:
        """Of the least terms, and of the greatest: any, all and sum never fall where a term rises."""
        term = self.of(expr.term)
        low, high = (end and simplify(reduction(expr.name, expr.index, end)) for end in (term.low, term.high))
        return Range(low, high)

    def _compare(self, expr: Op) -> Range:
        sides = self._ends_of(expr.args)
        found = None if sides is None else ordered(expr.name, *sides)
        if found is None:
            return UNKNOWN
        known = all_of(map(self._holds, expr.args))
        if known is TRUE:
            return Range(*found)
        return Range(op("and", known, found.low), op("or", op("not", known), found.high))

    def _holds(self, expr: Expr) -> Expr:
        """Whether the range of an operand of a comparison holds all its values, which of floats may be NaN."""
        if expr.type is not Type.FLOAT:
            return TRUE
        if self._is_end(expr):
            return _for_tile(expr, op("eq", expr, expr))
        return self._is_finite(expr)

    def _is_finite(self, expr: Expr) -> Expr:
        """Whether all floats are finite that a float is made of, and all that it comes to on the way."""
        return bottom_up(expr, self._finite, self._made_of_finite)

    def _made_of_finite(self, node: Expr) -> Expr:
        if node.type is not Type.FLOAT:
            return TRUE
        if self._is_end(node):
            return _for_tile(node, below_infinity(node))
        whole = all_of(self._finite[child] for child in node.children)
        if isinstance(node, Reduction):
            whole = simplify(reduction("all", node.index, whole))
        assert isinstance(node, Op | Reduction)
        # All values lie between the ends. What overflows may make NaN of finite numbers, and a bound then hide that.
        found = self.of(node) if node.name in ("add", "sub", "mul", "sum") else UNKNOWN
        ends = (end for end in (found.low, found.high) if end is not None and not is_surely_finite(end))
        return all_of([whole, *map(below_infinity, ends)])

    def _logic(self, expr: Op) -> Range:
        ranges = [self.of(arg) for arg in expr.args]
        every = [FALSE if r.low is None else r.low for r in ranges]
        some = [TRUE if r.high is None else r.high for r in ranges]
        if expr.name == "not":
            return Range(op("not", some[0]), op("not", every[0]))
        if expr.name in ("and", "or"):
            return Range(simplify(op(expr.name, *every)), simplify(op(expr.name, *some)))
        if expr.name == "where":
            test = expr.args[0]
            spelled = op("or", op("and", test, expr.args[1]), op("and", op("not", test), expr.args[2]))
            return self.of(spelled)
        if expr.name == "xor":
            a, b = expr.args
            return self.of(op("or", op("and", a, op("not", b)), op("and", op("not", a), b)))
        return UNKNOWN

    def _arithmetic(self, expr: Op) -> Range:
        rule, ends = RULES.get(expr.name), self._ends_of(expr.args)
        return UNKNOWN if rule is None or ends is None else rule(*ends)

    def _ends_of(self, exprs: Iterable[Expr]) -> list[Ends] | None:
        """The ends of each, None unless all are known."""
        found = [self.of(expr).ends for expr in exprs]
        known = [ends for ends in found if ends is not None]
        return known if len(known) == len(found) else None


def _over_tile(name: str, expr: Expr) -> Expr:
    return op(name, expr) if variables(expr) & {"q", "k"} else expr


def below_infinity(expr: Expr) -> Expr:
    """Whether a float is finite, which NaN is not."""
    return op("lt", op("abs", expr), const(math.inf))


def _for_tile(expr: Expr, test: Expr) -> Expr:
    """Whether a test of a float holds all over the tile, nothing to ask of one that is finite by its text."""
    return TRUE if is_surely_finite(expr) else _over_tile("tile_min", test)


def all_of(tests: Iterable[Expr]) -> Expr:
    """Whether all tests hold."""
    return reduce(lambda left, right: simplify(op("and", left, right)), tests, TRUE)


CORNERS_OF = {position: Range(*ends) for position, ends in CORNERS.items()}


def _monotone(node: Op) -> bool:
    """Whether the corners of the operands give the exact range of an operation along one axis."""
    if node.name == "floordiv":
        return isinstance(node.args[1], Const) and node.args[1].value > 0
    return node.name in ("add", "sub", "neg", "min", "max", "to_float", "to_int")
