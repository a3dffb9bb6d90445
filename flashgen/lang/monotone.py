"""Whether an integer expression rises or falls with the query's position: then its extremes are at a tile's ends."""

from __future__ import annotations

from collections.abc import Generator

from flashgen.lang.intervals import Ranges, assumed
from flashgen.lang.linear import linear
from flashgen.lang.nodes import Expr, Op
from flashgen.lang.recursion import Recursion
from flashgen.lang.traversal import variables
from flashgen.lang.variables import Q


def increasing_in_q(expr: Expr, ranges: Ranges | None = None) -> int | None:
    """+1, -1 or 0 when the INT expression never falls, never rises, or does not move as q grows; None: unknown."""
    known = ranges or assumed()
    return Recursion(lambda node: _increase(node, known))(expr)


def _increase(expr: Expr, ranges: Ranges) -> Generator[Expr, int | None, int | None]:
    if "q" not in variables(expr):
        return 0
    if expr is Q:
        return 1
    if not isinstance(expr, Op) or ranges.may_wrap(expr):
        return None
    if expr.name in ("min", "max", "add", "sub", "neg"):
        signs = []
        for arg in expr.args:
            signs.append((yield arg))
        if expr.name == "neg" or expr.name == "sub":
            signs[-1] = None if signs[-1] is None else -signs[-1]
        known = {sign for sign in signs if sign != 0}
        return known.pop() if len(known) == 1 else None
    if expr.name in ("mul", "floordiv"):
        factor = linear(expr.args[1])
        inner = yield expr.args[0]
        if factor.terms or inner is None or factor.constant == 0:
            return None
        return inner if factor.constant > 0 else -inner
    return None
