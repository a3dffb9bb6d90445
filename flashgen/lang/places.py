"""Where all pairs (q, k) of a tile read an input at one place: far from the diagonal of a clamped distance, say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flashgen.lang.elementary import ELEMENTARY
from flashgen.lang.fold import fold, simplify
from flashgen.lang.intervals import INT32, assumed
from flashgen.lang.linear import Linear, expression, linear
from flashgen.lang.magnitudes import is_surely_finite
from flashgen.lang.nodes import FALSE, TRUE, Const, Expr, Op, Type, const, op
from flashgen.lang.short_floors import with_short_floors
from flashgen.lang.tile_rules import UNKNOWN, Ends, Range
from flashgen.lang.tiles import Tiles, all_of, below_infinity
from flashgen.lang.traversal import variables

_RISING = {name: function.domain for name, function in ELEMENTARY.items() if function.rises}
_RISING_ABOVE_ZERO = frozenset(name for name, domain in _RISING.items() if domain.low >= 0)
# What is said of beside the operations of masks.
_MORE = _RISING.keys() | {"where", "truediv", "floor"}


def one_place(indices: Sequence[Expr]) -> Expr | None:
    """Whether all pairs of a tile have the same indices, from the tile's corners; None where these do not say."""
    places = _Places(assumed())
    equal: list[Expr] = []
    for index in indices:
        ends = places.of(with_short_floors(index, places.ranges.fits_int32)).ends
        if ends is None or "score" in variables(index):
            return None
        if ends.low is not ends.high:
            equal.append(_equal(*ends))
    whole = fold(all_of([*places.guards, *equal]))
    is_free = not variables(whole) & {"q", "k"}  # a reduction over the tile's rows or columns reads them
    return whole if is_free and whole is not FALSE else None


def _equal(low: Expr, high: Expr) -> Expr:
    """Of integers: what both have is left out."""
    gap = linear(low) - linear(high)
    one = Linear({atom: c for atom, c in gap.terms.items() if c > 0}, gap.constant)
    other = Linear({atom: -c for atom, c in gap.terms.items() if c < 0}, 0)
    return op("eq", expression(one), expression(other))


@dataclass
class _Places(Tiles):
    """The ranges of indices, by more operations than those of masks: they hold where all `guards` do.

    Floats on the way to an index, as in buckets that grow with the logarithm of a distance, are to be finite, and
    their floors to fit 32 bits.
    """

    guards: list[Expr] = field(default_factory=list)

    def _arithmetic(self, expr: Op) -> Range:
        found = self._more(expr) if expr.name in _MORE else super()._arithmetic(expr)
        if expr.type is Type.FLOAT and found.ends is not None:
            self._guard(*(below_infinity(end) for end in found.ends if self._may_be_infinite(end)))
        return found

    def _more(self, expr: Op) -> Range:
        if expr.name == "where":
            return self._chosen(*expr.args)
        ends = self._ends_of(expr.args)
        if ends is None:
            return UNKNOWN
        if expr.name == "truediv":
            return self._quotient(*ends)
        ((low, high),) = ends
        if expr.name in _RISING_ABOVE_ZERO:
            self._guard(*(op("gt", end, const(0.0)) for end in (low,) if self.ranges.of(end).low <= 0))
        if expr.name == "floor" and not self.ranges.fits_int32(expr):
            self._guard(*(op("lt", op("abs", end), const(float(-INT32.low))) for end in (low, high)))
            self.ranges.assume(expr, INT32)
        return Range(op(expr.name, low), op(expr.name, high))

    def _chosen(self, test: Expr, *branches: Expr) -> Range:
        """One or the other, where all pairs of the tile take it; else what lies between the ends of both."""
        ends = self._ends_of(branches)
        if ends is None:
            return UNKNOWN
        taken, (a, b) = self.of(test), ends
        every, some = taken.low or FALSE, TRUE if taken.high is None else taken.high
        low = op("where", every, a.low, op("where", some, op("min", a.low, b.low), b.low))
        high = op("where", every, a.high, op("where", some, op("max", a.high, b.high), b.high))
        return Range(simplify(low), simplify(high))

    def _quotient(self, dividend: Ends, divisor: Ends) -> Range:
        """By what is the same all over the tile, whatever its sign."""
        if divisor.low is not divisor.high:
            return UNKNOWN
        by = divisor.low
        low, high = (op("truediv", end, by) for end in dividend)
        if isinstance(by, Const) and by.value > 0:
            return Range(low, high)
        self._guard(op("ne", by, const(0.0)))
        return Range(simplify(op("min", low, high)), simplify(op("max", low, high)))

    def _may_be_infinite(self, end: Expr) -> bool:
        return not is_surely_finite(end) and not self.ranges.of(end).has_ends

    def _guard(self, *conditions: Expr) -> None:
        self.guards += [found for found in map(fold, conditions) if found is not TRUE]
