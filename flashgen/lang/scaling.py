"""A factor that is one number for a tile, pushed through an expression as far as it goes: there it meets others.

Products of constants are taken at once, as far as float32 holds them.
"""

from __future__ import annotations

from collections.abc import Collection, Generator

from flashgen.lang.addends import reading_score
from flashgen.lang.fold import fold
from flashgen.lang.magnitudes import is_beyond, is_held
from flashgen.lang.nodes import Const, Expr, Op, Type, const, op
from flashgen.lang.recursion import Recursion
from flashgen.lang.traversal import rebuild
from flashgen.lang.variables import is_uniform

ONE = const(1.0)
# Under so many factors an expression is written anew for each.
_MOST_FACTORS = 4
# A constant beyond this one times a number of a call may be infinite in float32.
_LARGEST_FACTOR = 2.0**64


def scaled(expr: Expr, factor: Expr) -> Expr:
    """expr * factor, for a uniform factor, pushed inside sums, products and choices."""
    return Recursion(_Scaling(reading_score(expr)).rule)((expr, factor))


class _Scaling:
    """What is read in many places under many factors is scaled once, and its value multiplied."""

    def __init__(self, with_score: Collection[Expr]) -> None:
        self._with_score = with_score
        self._factors: dict[Expr, set[Expr]] = {}

    def rule(self, asked: tuple[Expr, Expr]) -> Generator[tuple[Expr, Expr], Expr, Expr]:
        expr, factor = asked
        if is_uniform(expr) or not isinstance(expr, Op):
            return times(expr, factor)
        factors = self._factors.setdefault(expr, set())
        factors.add(factor)
        if len(factors) > _MOST_FACTORS and factor is not ONE:
            return times((yield expr, ONE), factor)
        if expr.name in ("add", "sub"):
            if expr not in self._with_score:
                return times(expr, factor)
            return op(expr.name, (yield expr.args[0], factor), (yield expr.args[1], factor))
        if expr.name == "neg":
            return (yield expr.args[0], fold(op("neg", factor)))
        if expr.name == "where":
            return op("where", expr.args[0], (yield expr.args[1], factor), (yield expr.args[2], factor))
        if expr.name == "mul":
            left, right = expr.args
            if is_uniform(left) and _may_meet(left, factor):
                return (yield right, times(left, factor))
            if is_uniform(right) and _may_meet(right, factor):
                return (yield left, times(right, factor))
        if expr.name == "truediv" and is_uniform(expr.args[1]):
            return (yield expr.args[0], _quotient(factor, expr.args[1]))
        # Its float operands have their own uniform factors gathered.
        children = []
        for child in expr.children:
            children.append((yield child, ONE) if child.type is Type.FLOAT else child)
        return times(rebuild(expr, tuple(children)), factor)


def _may_meet(one: Expr, other: Expr) -> bool:
    """Whether two factors may be multiplied before the third: not a huge constant and what is known in a call alone, or
    constants whose product float32 does not hold.

    Their product may be infinite where that with the third, which may be 0, is not.
    """
    if isinstance(one, Const) and isinstance(other, Const):
        return _joined(one, other) is not None
    pairs = ((one, other), (other, one))
    return not any(is_beyond(_LARGEST_FACTOR, a) and not isinstance(b, Const) for a, b in pairs)


def _joined(one: Const, other: Const) -> Expr | None:
    """The product of two constants; None where it is no normal float32, though both are."""
    found = float(one.value) * float(other.value)
    both = is_held(abs(one.value)) and is_held(abs(other.value))
    return const(found) if is_held(abs(found)) or not both else None


def times(left: Expr, right: Expr) -> Expr:
    """left * right, constants multiplied at once, as far as float32 holds their product, and kept on the right."""
    if isinstance(left, Const):
        left, right = right, left
    if not isinstance(right, Const):
        return op("mul", left, right)
    if right.value == 1.0:
        return left
    inner, constant = left.args if isinstance(left, Op) and left.name == "mul" else (None, left)
    whole = _joined(constant, right) if isinstance(constant, Const) else None
    if whole is None:
        return op("mul", left, right)
    return whole if inner is None else times(inner, whole)


def _quotient(left: Expr, right: Expr) -> Expr:
    if isinstance(right, Const) and right.value and is_held(abs(1.0 / right.value)):
        return times(left, const(1.0 / float(right.value)))
    return op("truediv", left, right)
