"""Products and quotients of float expressions, gathered so that they come out as a person would write them.

Numbers are multiplied at once, equal factors that are uniform over a tile cancel, like terms of a sum are added up
and what its terms have in common is written once. That reassociates: it is for derivatives, whose rounding is free,
and not for what `fold` simplifies.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from flashgen.lang.fold import simplify
from flashgen.lang.magnitudes import LEAST_FLOAT32, is_held
from flashgen.lang.nodes import Const, Expr, Op, const, op
from flashgen.lang.variables import is_uniform


@dataclass(frozen=True)
class Product:
    """number * product of `over` / product of `under`. The number is exact, so that x / 49 * 49 is x."""

    number: Fraction = Fraction(1)
    over: tuple[Expr, ...] = ()
    under: tuple[Expr, ...] = ()

    @property
    def is_zero(self) -> bool:
        return self.number == 0

    def __neg__(self) -> Product:
        return Product(-self.number, self.over, self.under)

    def __mul__(self, other: Product) -> Product:
        over, under = _cancelled(self.over + other.over, self.under + other.under)
        return Product(self.number * other.number, over, under)

    def __truediv__(self, other: Product) -> Product:
        """The divisor's number is not zero: `product` sees to that."""
        over, under = _cancelled(self.over + other.under, self.under + other.over)
        return Product(self.number / other.number, over, under)

    def expression(self) -> Expr:
        """As one node: what varies by pair, times what is uniform in one piece, which a kernel computes only once."""
        if self.is_zero:
            return const(0.0)
        pair = _multiplied(node for node in self.over if not is_uniform(node))
        uniform = _multiplied(node for node in self.over if is_uniform(node))
        number, powers = _held(abs(self.number))
        if number != 1:
            uniform = _multiplied([*([uniform] if uniform else []), const(number)])
        for divisor in filter(is_uniform, self.under):
            uniform = op("truediv", uniform or const(1.0), divisor)
        whole = _multiplied(node for node in (pair, uniform) if node is not None)
        for divisor in (node for node in self.under if not is_uniform(node)):
            whole = op("truediv", whole or const(1.0), divisor)
        whole = whole or const(1.0)
        for power in powers:
            whole = op("mul", whole, const(power))
        return simplify(op("neg", whole)) if self.number < 0 else whole


ONE = Product()


def product(*factors: Expr) -> Product:
    """The product of some expressions."""
    whole = ONE
    for factor in factors:
        whole = whole * _single(factor)
    return whole


def total(products: Sequence[Product]) -> Product:
    """The sum."""
    numbers: dict[tuple, Fraction] = {}
    kinds: dict[tuple, Product] = {}
    for each in products:
        key = (frozenset(Counter(each.over).items()), frozenset(Counter(each.under).items()))
        kinds.setdefault(key, each)
        numbers[key] = numbers.get(key, Fraction(0)) + each.number
    terms = [Product(numbers[key], each.over, each.under) for key, each in kinds.items() if numbers[key]]
    if len(terms) < 2:
        return terms[0] if terms else Product(Fraction(0))
    shared, rests = in_common(terms)
    whole: Expr | None = None
    for rest in sorted(rests, key=lambda rest: rest.number < 0):
        if whole is None:
            whole = rest.expression()
        elif rest.number < 0:
            whole = op("sub", whole, (-rest).expression())
        else:
            whole = op("add", whole, rest.expression())
    assert whole is not None
    return shared * product(whole)


def in_common(products: Sequence[Product]) -> tuple[Product, list[Product]]:
    """What all have as factors and divisors, and what is left of each; numbers stay where they are."""
    over, under = Counter(products[0].over), Counter(products[0].under)
    for each in products[1:]:
        over &= Counter(each.over)
        under &= Counter(each.under)
    shared = Product(Fraction(1), tuple(over.elements()), tuple(under.elements()))
    return shared, [Product(p.number, _without(p.over, over), _without(p.under, under)) for p in products]


def _single(factor: Expr) -> Product:
    if isinstance(factor, Const) and factor.value and math.isfinite(factor.value):
        return Product(Fraction(factor.value))
    if isinstance(factor, Op) and factor.name == "neg":
        return -_single(factor.args[0])
    return Product(over=(factor,))


def _held(number: Fraction) -> tuple[float, list[float]]:
    """A number above 0 as one that float32 holds, and the powers of two that lead on to it.

    What may be 0 is multiplied with one after the other, and not with infinity.
    """
    powers = list[float]()
    while not is_held(number):
        powers.append(2.0**127 if number > 1 else LEAST_FLOAT32)
        number /= Fraction(powers[-1])
    return float(number), powers


def _cancelled(over: tuple[Expr, ...], under: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    both = Counter(node for node in over if node in under and is_uniform(node)) & Counter(under)
    return (_without(over, both), _without(under, both)) if both else (over, under)


def _without(nodes: Iterable[Expr], gone: Counter[Expr]) -> tuple[Expr, ...]:
    left = Counter(gone)
    kept = []
    for node in nodes:
        if left[node]:
            left[node] -= 1
        else:
            kept.append(node)
    return tuple(kept)


def _multiplied(factors: Iterable[Expr]) -> Expr | None:
    whole: Expr | None = None
    for factor in factors:
        whole = factor if whole is None else simplify(op("mul", whole, factor))
    return whole
