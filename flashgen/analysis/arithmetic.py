"""An expression as kernels compute it: its divisions and truncations as a GPU has them, to the same value."""

from __future__ import annotations

import math

from flashgen.analysis.levels import ONCE, level
from flashgen.lang.fold import simplify
from flashgen.lang.intervals import Ranges
from flashgen.lang.nodes import COMPARISONS, Const, Expr, Op, Type, op
from flashgen.lang.traversal import indices, rebuild, transform, variables, walk

# Up to which size floor_div_by of runtime/device/reciprocals.py divides.
LARGEST = 2**29 - 1
_BELOW_ZERO, _ABOVE_ZERO = frozenset({"lt", "le"}), frozenset({"gt", "ge"})


def as_computed(expr: Expr, ranges: Ranges) -> Expr:
    """An expression as kernels compute it."""
    return with_reciprocals(with_quotients(with_truncations(ranges.plain(expr), ranges)), ranges)


def with_truncations(root: Expr, ranges: Ranges) -> Expr:
    """The same value: where(x < 0, -floor(-x), floor(x)) is a truncation, of a float that fits 32 bits.

    That is one instruction in place of eight.
    """
    return transform(root, lambda node: _truncation(node, ranges))


def _truncation(node: Expr, ranges: Ranges) -> Expr:
    if not (isinstance(node, Op) and node.name == "where" and ranges.fits_int32(node)):
        return node
    test, *branches = node.args
    if not (isinstance(test, Op) and test.name in _BELOW_ZERO | _ABOVE_ZERO and _is_zero(test.args[1])):
        return node
    x = test.args[0]
    floor, ceiling = op("floor", x), simplify(op("neg", op("floor", simplify(op("neg", x)))))
    below, above = branches if test.name in _BELOW_ZERO else reversed(branches)
    return op("trunc", x) if below is ceiling and above is floor else node


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.type is Type.FLOAT and expr.value == 0.0


def with_quotients(root: Expr) -> Expr:
    """The same value, its divisions below floors and comparisons rounded correctly, but for those of scores.

    A GPU divides by way of an approximate reciprocal, so that 41 / 41 is less than 1 and `floor(k / 41)` is 0 for
    k = 41. What a score has of that is lost in its rounding. A floor or a comparison is wrong by a whole number, or a
    whole pair.
    """
    decided = {node for node in walk(*(x for node in walk(root) for x in _decided_by(node))) if _may_err(node)}
    if not decided:
        return root
    done: dict[Expr, Expr] = {}
    for node in walk(root):
        done[node] = rebuild(node, tuple(done[child] for child in node.children))
        if node in decided:
            done[node] = op("quotient", *done[node].children)
    return done[root]


def _decided_by(node: Expr) -> tuple[Expr, ...]:
    """The floats of which a node is a step function; a comparison with infinity looks at no digit."""
    if not isinstance(node, Op) or node.args[0].type is not Type.FLOAT:
        return ()
    if node.name in COMPARISONS and not any(isinstance(x, Const) and math.isinf(x.value) for x in node.args):
        return node.args
    return node.args if node.name in ("floor", "trunc") else ()


def _may_err(node: Expr) -> bool:
    """Whether it is a division whose quotient is no product of its dividend and a power of two."""
    if not (isinstance(node, Op) and node.name == "truediv") or variables(node) & {"score", "qk"}:
        return False
    divisor = node.args[1]
    return not (isinstance(divisor, Const) and abs(math.frexp(divisor.value)[0]) == 0.5)


def with_reciprocals(root: Expr, ranges: Ranges) -> Expr:
    """The same value, its integer quotients and remainders by one number a program computed with its reciprocal.

    A GPU divides integers by some twenty instructions, and multiplies them by one: the reciprocal is computed once, and
    then there is a product for each row, key or pair.
    """

    def rule(node: Expr) -> Expr:
        if not isinstance(node, Op) or not _has_one_divisor(node, ranges):
            return node
        dividend, divisor = node.args
        quotient = op("floordiv_by", dividend, op("reciprocal_of", divisor))
        return quotient if node.name == "floordiv" else op("remainder_of", dividend, divisor, quotient)

    return transform(root, rule)


def _has_one_divisor(node: Op, ranges: Ranges) -> bool:
    """Whether it divides what differs within a tile, and is no larger than LARGEST, by one number a program."""
    if node.name not in ("floordiv", "mod") or node.type is not Type.INT:
        return False
    dividend, divisor = node.args
    if isinstance(divisor, Const) or level(divisor) != ONCE or indices(divisor) or level(dividend) == ONCE:
        return False
    return ranges.of(dividend).within(-LARGEST, LARGEST) and ranges.fits_int32(divisor)


def is_reciprocal(expr: Expr) -> bool:
    """Whether it is what quotients and remainders by one number are computed with."""
    return isinstance(expr, Op) and expr.name == "reciprocal_of"
