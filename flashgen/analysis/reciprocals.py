"""Division by what is the same for the whole program: once for a reciprocal, then a product for each row, key or pair.

A GPU divides integers by some twenty instructions, and multiplies them by one.
"""

from __future__ import annotations

from flashgen.analysis.levels import ONCE, level
from flashgen.lang.intervals import Ranges
from flashgen.lang.nodes import Const, Expr, Op, Type, op
from flashgen.lang.traversal import indices, transform

# Up to which size floor_div_by of runtime/device/reciprocals.py divides.
LARGEST = 2**29 - 1


def with_reciprocals(root: Expr, ranges: Ranges) -> Expr:
    """The same value, its integer quotients and remainders by one number a program computed with its reciprocal."""

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
