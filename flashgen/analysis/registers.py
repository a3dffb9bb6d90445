"""What the logit of a pair takes of registers beside its score, as far as built-in configs have to know."""

from __future__ import annotations

from flashgen.analysis.levels import PAIR, level
from flashgen.lang.nodes import Const, Expr, Gather, Op, Type, walk
from flashgen.lang.variables import K

# Of many instructions, with branches for the ends of their range.
_LONG = frozenset({"log", "log2", "sin", "cos", "tan", "erf"})
_DIVISIONS = frozenset({"truediv", "quotient", "floordiv", "mod", "floordiv_by", "remainder_of"})
# Powers that are products are short.
_SHORT_EXPONENTS = range(9)


def has_long_functions(logit: Expr) -> bool:
    """Whether a function of many instructions is taken of each pair, as in log(1 + q - k)."""
    return any(_is_long(node) for node in walk(logit) if level(node) == PAIR)


def has_lookups(logit: Expr) -> bool:
    """Whether each pair reads an element that is not beside its neighbour's, or is divided by what is no constant.

    As in table[h, q - k] and 1 / (1 + q - k); a bias [h, q, k] is read in rows.
    """
    return any(_is_lookup(node) for node in walk(logit) if level(node) == PAIR)


def _is_long(node: Expr) -> bool:
    if not isinstance(node, Op):
        return False
    if node.name == "pow" and node.type is Type.FLOAT:
        exponent = node.args[1]
        return not (isinstance(exponent, Const) and exponent.value in _SHORT_EXPONENTS)
    return node.name in _LONG


def _is_lookup(node: Expr) -> bool:
    if isinstance(node, Gather):
        return node.children[-1] is not K
    if not isinstance(node, Op):
        return False
    return node.name == "sigmoid" or (node.name in _DIVISIONS and not isinstance(node.args[1], Const))
