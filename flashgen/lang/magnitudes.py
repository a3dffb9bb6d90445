"""How large a float expression may become, as far as its text tells.

A score, what is one number for a head or a call (a slope, a cap), and integers count as moderate. What the caller gives
for each row, key or pair does not: an additive mask holds -10000, -1e9 or the least float32 that there is.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from flashgen.lang.nodes import Const, Expr, Gather, Op, Type, Var, variables, walk

_SCORE, _ONE_NUMBER, _INTEGER = 1e4, 1e3, 2.0**31
_OF_PAIRS = frozenset({"q", "k", "qk", "score"})


def magnitude(root: Expr) -> float:
    """A bound of the absolute value; infinite where nothing bounds it."""
    known: dict[Expr, float] = {}
    for node in walk(root):
        known[node] = _magnitude(node, [known[child] for child in node.children])
    return known[root]


def _magnitude(node: Expr, parts: list[float]) -> float:
    if isinstance(node, Const):
        return math.inf if math.isnan(node.value) else abs(float(node.value))
    if node.type is not Type.FLOAT:
        return _INTEGER if node.type is Type.INT else 1.0
    if isinstance(node, Var):
        return _SCORE if node.name in ("qk", "score") else _ONE_NUMBER
    if isinstance(node, Gather):
        return math.inf if variables(node) & _OF_PAIRS else _ONE_NUMBER
    assert isinstance(node, Op)
    if node.name == "truediv" and variables(node.args[1]) & _OF_PAIRS:
        return math.inf
    return _RULES.get(node.name, _unbounded)(*parts)


def _unbounded(*parts: float) -> float:
    return math.inf


def _times(x: float, y: float) -> float:
    return 0.0 if 0.0 in (x, y) else x * y


_RULES: dict[str, Callable[..., float]] = {
    **dict.fromkeys(("add", "sub"), lambda x, y: x + y),
    "mul": _times,
    # By one number, which is as far from zero as from infinity.
    "truediv": lambda x, y: _times(x, _ONE_NUMBER),
    **dict.fromkeys(("neg", "abs", "to_float"), lambda x: x),
    **dict.fromkeys(("min", "max"), max),
    "where": lambda test, x, y: max(x, y),
    **dict.fromkeys(("tanh", "softcap", "sigmoid"), lambda x: 1.0),
    "sqrt": lambda x: max(1.0, x),
    "mod": lambda x, y: y,
}
