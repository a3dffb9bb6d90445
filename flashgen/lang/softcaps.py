"""Which hyperbolic tangents only cap a score, so that an absolute error of theirs stays one of the result.

`cap * tanh(score / cap)` is nowhere steeper than the score. There tanh may come from an instruction of the GPU that is
right to 11 bits, and its derivative from the value, as 1 - tanh**2, whose error is then at most that of 1. Where a
score grows faster, 1 - tanh**2 would be multiplied by that growth long after its digits are gone.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence

from flashgen.lang.derivative import ZERO, derivatives
from flashgen.lang.nodes import Const, Expr, Gather, Op, op
from flashgen.lang.products import Product, product
from flashgen.lang.recursion import Recursion
from flashgen.lang.traversal import indices, rebuild, walk
from flashgen.lang.variables import SCORE

# A cap that is no binary fraction leaves a factor beside 1.
_MOST_FACTORS = 64
_STEEPEST = 1.0 + 1e-6


def with_softcaps(score: Expr, learned: Sequence[str], *others: Expr) -> tuple[Expr, ...]:
    """The score, and other expressions of its parts, with `softcap` in place of each tanh that only caps."""
    leaves = [SCORE, *(node for node in walk(score) if isinstance(node, Gather) and node.input in learned)]
    tanhs = [node for node in walk(score) if isinstance(node, Op) and node.name == "tanh" and not indices(node)]
    outer = dict(zip(tanhs, derivatives(score, tanhs), strict=True)) if tanhs else {}
    caps = {node for node in tanhs if _only_caps(outer[node], derivatives(node.args[0], leaves))}
    done: dict[Expr, Expr] = {}
    for node in walk(score, *others):
        same = rebuild(node, tuple(done[child] for child in node.children))
        done[node] = op("softcap", *same.children) if node in caps else same
    return tuple(done[root] for root in (score, *others))


def _only_caps(outer: Expr, inner: Sequence[Expr]) -> bool:
    return all(_size((_factors(outer) * _factors(slope)).expression()) <= _STEEPEST for slope in inner)


def _factors(expr: Expr) -> Product:
    """The expression taken apart, so that what one multiplies by and another divides by cancels."""
    return Recursion(_take_apart)(expr)


def _take_apart(expr: Expr) -> Generator[Expr, Product, Product]:
    whole = product(expr)
    if isinstance(expr, Op) and expr.name == "mul":
        whole = (yield expr.args[0]) * (yield expr.args[1])
    elif isinstance(expr, Op) and expr.name == "truediv" and expr.args[1] is not ZERO:
        whole = (yield expr.args[0]) / (yield expr.args[1])
    # A power by squaring has no end of factors.
    return whole if len(whole.over) + len(whole.under) <= _MOST_FACTORS else product(expr)


def _size(expr: Expr) -> float:
    """The largest magnitude of a constant, or of a choice of constants; infinite where it is not known."""
    return Recursion(_measure)(expr)


def _measure(expr: Expr) -> Generator[Expr, float, float]:
    if isinstance(expr, Const):
        return abs(float(expr.value))
    if isinstance(expr, Op) and expr.name == "where":
        return max((yield expr.args[1]), (yield expr.args[2]))
    if isinstance(expr, Op) and expr.name == "mul":
        return (yield expr.args[0]) * (yield expr.args[1])
    return (yield expr.args[0]) if isinstance(expr, Op) and expr.name == "neg" else math.inf
