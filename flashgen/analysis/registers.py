"""What a logit and a mask take of registers beside the scores, as far as built-in configs have to know."""

from __future__ import annotations

from flashgen.analysis.levels import COL, PAIR, level
from flashgen.lang.nodes import FLOAT_FUNCTIONS, Const, Expr, Gather, Op, Type
from flashgen.lang.powers import factors, is_of_two
from flashgen.lang.traversal import walk
from flashgen.lang.variables import K

# Those of few instructions; others have many, or branches for the ends of their range.
_SHORT = frozenset({"exp", "exp2", "tanh", "sqrt", "sigmoid"})
_DIVISIONS = frozenset({"truediv", "quotient", "floordiv", "mod", "floordiv_by", "remainder_of"})


def has_long_functions(logit: Expr) -> bool:
    """Whether a function of many instructions is taken of each pair, as in log(1 + q - k)."""
    return any(_is_long(node) for node in walk(logit) if level(node) == PAIR)


def has_lookups(logit: Expr) -> bool:
    """Whether each pair reads an element that is not beside its neighbour's, or is divided by what is no constant.

    As in table[h, q - k] and 1 / (1 + q - k); a bias [h, q, k] is read in rows.
    """
    return any(_is_lookup(node) for node in walk(logit) if level(node) == PAIR)


def divides_keys(mask: Expr) -> bool:
    """Whether a mask has quotients of each key by what is no constant, as k // width of a width of the caller's."""
    return any(_is_division(node) for node in walk(mask) if level(node) == COL)


def _is_long(node: Expr) -> bool:
    if not isinstance(node, Op):
        return False
    if node.name == "pow" and node.type is Type.FLOAT:
        return not (factors(node) or is_of_two(node))
    return node.name in FLOAT_FUNCTIONS - _SHORT


def _is_lookup(node: Expr) -> bool:
    if isinstance(node, Gather):
        return node.children[-1] is not K
    return _is_division(node) or (isinstance(node, Op) and node.name == "sigmoid")


def _is_division(node: Expr) -> bool:
    return isinstance(node, Op) and node.name in _DIVISIONS and not isinstance(node.args[1], Const)
