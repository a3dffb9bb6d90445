"""Divisions of floats that decide something: there the last bit counts.

A GPU divides by way of an approximate reciprocal, so that 41 / 41 is less than 1 and `floor(k / 41)` is 0 for k = 41.
What a score has of that is lost in its rounding. A floor or a comparison is wrong by a whole number, or a whole pair.
"""

from __future__ import annotations

import math

from flashgen.lang.nodes import COMPARISONS, Const, Expr, Op, Type, op
from flashgen.lang.traversal import rebuild, variables, walk


def with_quotients(root: Expr) -> Expr:
    """The same value, its divisions below floors and comparisons rounded correctly, but for those of scores."""
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
