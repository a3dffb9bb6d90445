"""Simplification that keeps the exact meaning: constants are computed, operations without effect go.

Exact means bit for bit, so a float is never multiplied away, reassociated, or rid of a `+ 0.0` (which turns
minus zero into zero).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeGuard

from flashgen.lang.evaluate import apply
from flashgen.lang.nodes import FALSE, NEGATED, TRUE, Const, Expr, Op, Reduction, Type, const, op
from flashgen.lang.traversal import indices, transform

INT_MIN, INT_MAX = -(2**63), 2**63 - 1


def fold(expr: Expr) -> Expr:
    """The simplest expression with the same value everywhere."""
    return transform(expr, simplify)


def simplify(node: Expr) -> Expr:
    """One node whose operands are already simple."""
    if isinstance(node, Reduction):
        return _reduction(node, node.index.length)
    if not isinstance(node, Op):
        return node
    operands = [argument.value for argument in node.args if isinstance(argument, Const)]
    if len(operands) == len(node.args):
        value = apply(node.name, *operands)
        # What passes 64 bits stays as written, for the checker to refuse.
        return const(value) if representable(value) else node
    rule = _RULES.get(node.name)
    return rule(node, *node.args) if rule else node


def _reduction(node: Reduction, length: Expr) -> Expr:
    """One of no terms, or of terms that are all the same, but for floats: these are added up one by one."""
    if isinstance(length, Const) and length.value <= 0:
        return nothing(node.name, node.type)
    if node.index in indices(node.term) or node.type is Type.FLOAT:
        return node
    if node.name == "sum":
        return simplify(op("mul", simplify(op("max", length, const(0))), node.term))
    if node.name == "any":
        return simplify(op("and", simplify(op("gt", length, const(0))), node.term))
    return simplify(op("or", simplify(op("le", length, const(0))), node.term))


def nothing(name: str, kind: Type) -> Const:
    """What a reduction of no terms is."""
    found = const(name == "all") if kind is Type.BOOL else const(0.0 if kind is Type.FLOAT else 0)
    assert isinstance(found, Const)
    return found


def representable(value: bool | int | float) -> bool:
    return isinstance(value, float) or INT_MIN <= value <= INT_MAX


def _is(node: Expr, *values: bool | int | float) -> TypeGuard[Const]:
    """Whether a node is one of these constants, type and sign of zero included."""
    return isinstance(node, Const) and any(node is const(value) for value in values)


def _is_op(node: Expr, name: str) -> bool:
    return isinstance(node, Op) and node.name == name


def _add(node: Expr, x: Expr, y: Expr) -> Expr:
    if _is(y, 0, -0.0):
        return x
    return y if _is(x, 0, -0.0) else node


def _sub(node: Expr, x: Expr, y: Expr) -> Expr:
    if _is(y, 0, 0.0):
        return x
    if x is y and x.type is Type.INT:
        return const(0)
    return op("neg", y) if _is(x, 0) else node


def _mul(node: Expr, x: Expr, y: Expr) -> Expr:
    if _is(y, 1, 1.0):
        return x
    if _is(x, 1, 1.0):
        return y
    return const(0) if _is(x, 0) or _is(y, 0) else node


def _truediv(node: Expr, x: Expr, y: Expr) -> Expr:
    if _is(y, 0.0, -0.0):
        # The same in IEEE 754, and nothing for Python to raise on where it computes with constants.
        return op("mul", x, const(math.copysign(math.inf, y.value)))
    return x if _is(y, 1.0) else node


def _floordiv(node: Expr, x: Expr, y: Expr) -> Expr:
    if _is(y, 1):
        return x
    return const(0) if _is(x, 0) or _is(y, 0) else node


def _mod(node: Expr, x: Expr, y: Expr) -> Expr:
    return const(0) if _is(x, 0) or _is(y, 0, 1, -1) else node


def _pow(node: Expr, x: Expr, y: Expr) -> Expr:
    if _is(y, 1, 1.0):
        return x
    if _is(y, 2, 2.0):
        return op("mul", x, x)
    if _is(y, 0, 0.0):
        return const(1 if x.type is Type.INT else 1.0)
    return node


def _neg(node: Expr, x: Expr) -> Expr:
    return x.children[0] if _is_op(x, "neg") else node


def _abs(node: Expr, x: Expr) -> Expr:
    if _is_op(x, "neg"):
        return op("abs", x.children[0])
    return x if _is_op(x, "abs") else node


def _not(node: Expr, x: Expr) -> Expr:
    if not isinstance(x, Op):
        return node
    if x.name == "not":
        return x.args[0]
    # not (a < b) is a >= b only where neither can be NaN.
    if x.name in ("eq", "ne") or (x.name in NEGATED and x.args[0].type is Type.INT):
        return op(NEGATED[x.name], *x.args)
    return node


def _and(node: Expr, x: Expr, y: Expr) -> Expr:
    if _is(x, False, 0) or _is(y, True, -1) or x is y:
        return x
    return y if _is(y, False, 0) or _is(x, True, -1) else node


def _or(node: Expr, x: Expr, y: Expr) -> Expr:
    if _is(x, True, -1) or _is(y, False, 0) or x is y:
        return x
    return y if _is(y, True, -1) or _is(x, False, 0) else node


def _xor(node: Expr, x: Expr, y: Expr) -> Expr:
    if x is y:
        return FALSE if x.type is Type.BOOL else const(0)
    if _is(y, False, 0):
        return x
    if _is(x, False, 0):
        return y
    if _is(y, True):
        return simplify(op("not", x))
    return simplify(op("not", y)) if _is(x, True) else node


def _shift(node: Expr, x: Expr, count: Expr) -> Expr:
    return x if _is(count, 0) or _is(x, 0) else node


def _same(node: Expr, x: Expr, y: Expr) -> Expr:
    """min and max of one thing."""
    return x if x is y else node


def _where(node: Expr, test: Expr, x: Expr, y: Expr) -> Expr:
    if x is y or test is TRUE:
        return x
    if test is FALSE:
        return y
    if x is TRUE and y is FALSE:
        return test
    return simplify(op("not", test)) if x is FALSE and y is TRUE else node


def _compare_with_itself(answer: Expr) -> Callable[..., Expr]:
    # A float may be NaN, which equals nothing.
    return lambda node, x, y: answer if x is y and x.type is not Type.FLOAT else node


_RULES: dict[str, Callable[..., Expr]] = {
    "add": _add, "sub": _sub, "mul": _mul, "truediv": _truediv, "floordiv": _floordiv, "mod": _mod, "pow": _pow,
    "neg": _neg, "abs": _abs, "not": _not, "and": _and, "or": _or, "xor": _xor, "shl": _shift, "shr": _shift,
    "min": _same, "max": _same, "where": _where,
    **dict.fromkeys(("eq", "le", "ge"), _compare_with_itself(TRUE)),
    **dict.fromkeys(("ne", "lt", "gt"), _compare_with_itself(FALSE)),
}  # fmt: skip
