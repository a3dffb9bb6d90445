"""How a result depends on a node: by a factor where conditions hold, and elsewhere not at all.

Conditions are kept apart from the factor to the very end, so that 0 is selected and never 0 times infinity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashgen.lang.fold import simplify
from flashgen.lang.nodes import FALSE, TRUE, Expr, Op, op
from flashgen.lang.products import ONE, Product, in_common, product, total


@dataclass(frozen=True)
class Partial:
    """d node / d operand: `factor` where all the conditions hold, 0 elsewhere."""

    operand: Expr
    factor: Product = ONE
    conditions: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class Share:
    """One way in which the result depends on a node: by `factor` where all conditions hold, by exactly 0 elsewhere."""

    factor: Product
    conditions: tuple[Expr, ...] = ()

    def through(self, partial: Partial) -> Share | None:
        """The share of an operand; None where its conditions exclude each other."""
        conditions = list(self.conditions)
        for condition in partial.conditions:
            if condition is FALSE or any(_opposite(condition, known) for known in conditions):
                return None
            if condition is not TRUE and condition not in conditions:
                conditions.append(condition)
        factor = self.factor * partial.factor
        return None if factor.is_zero else Share(factor, tuple(conditions))

    def inside(self, depth: int = 1) -> Share:
        """The share where the first conditions are known to hold."""
        return Share(self.factor, self.conditions[depth:])


def value(shares: Sequence[Share]) -> Product:
    """The sum of the shares."""
    terms = [share.factor for share in shares if not share.conditions]
    for branch in _branches(shares):
        then, otherwise = value(branch.then), value(branch.otherwise)
        shared = ONE
        if not then.is_zero and not otherwise.is_zero:
            shared, (then, otherwise) = in_common([then, otherwise])
        terms.append(shared * product(simplify(op("where", branch.test, then.expression(), otherwise.expression()))))
    return total(terms)


def as_one(shares: Sequence[Share]) -> Share:
    """All shares in one. Where none is reached it is exactly 0, whatever it is multiplied by later."""
    if len(shares) == 1:
        return shares[0]
    reached = _reached(shares)
    return Share(value(shares), () if reached is TRUE else (reached,))


def _reached(shares: Sequence[Share]) -> Expr:
    """Where any share has its conditions fulfilled."""
    if not all(share.conditions for share in shares):
        return TRUE
    whole = FALSE
    for branch in _branches(shares):
        then, otherwise = _reached(branch.then), _reached(branch.otherwise)
        reached = _all([branch.test, then])
        if otherwise is not FALSE:
            reached = simplify(op("or", reached, _all([simplify(op("not", branch.test)), otherwise])))
        whole = TRUE if then is TRUE and otherwise is TRUE else simplify(op("or", whole, reached))
    return whole


@dataclass(frozen=True)
class _Branch:
    """Shares that depend on one test: those where it holds, and those where it does not."""

    test: Expr
    then: Sequence[Share]
    otherwise: Sequence[Share]


def _branches(shares: Sequence[Share]) -> list[_Branch]:
    """The shares with conditions, by the first of these."""
    found = []
    rest = [share for share in shares if share.conditions]
    while rest:
        first = rest[0].conditions[0]
        same = [share for share in rest if share.conditions[0] is first]
        opposite = [share for share in rest if _opposite(share.conditions[0], first)]
        rest = [share for share in rest if share not in same and share not in opposite]
        depth = 1 if opposite else _common_depth(same)
        if depth > 1:
            found.append(_Branch(_all(same[0].conditions[:depth]), [share.inside(depth) for share in same], ()))
            continue
        then, otherwise = [share.inside() for share in same], [share.inside() for share in opposite]
        if isinstance(first, Op) and first.name == "not":
            first, then, otherwise = first.args[0], otherwise, then
        found.append(_Branch(first, then, otherwise))
    return found


def _common_depth(shares: Sequence[Share]) -> int:
    """How many conditions all have in common from the first on."""
    levels = zip(*(share.conditions for share in shares), strict=False)
    return next((i for i, level in enumerate(levels) if len(set(level)) > 1), min(len(s.conditions) for s in shares))


def _opposite(a: Expr, b: Expr) -> bool:
    return simplify(op("not", a)) is simplify(b) or simplify(op("not", b)) is simplify(a)


def _all(conditions: Sequence[Expr]) -> Expr:
    whole = TRUE
    for condition in conditions:
        whole = simplify(op("and", whole, simplify(condition)))
    return whole
