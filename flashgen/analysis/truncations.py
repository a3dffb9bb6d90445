"""Floats that are rounded toward zero, as a conversion to an integer rounds them: one instruction in place of eight."""

from __future__ import annotations

from flashgen.lang.fold import simplify
from flashgen.lang.intervals import Ranges
from flashgen.lang.nodes import Const, Expr, Op, Type, op
from flashgen.lang.traversal import transform

_BELOW_ZERO, _ABOVE_ZERO = frozenset({"lt", "le"}), frozenset({"gt", "ge"})


def with_truncations(root: Expr, ranges: Ranges) -> Expr:
    """The same value: where(x < 0, -floor(-x), floor(x)) is a truncation, of a float that fits 32 bits."""
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
