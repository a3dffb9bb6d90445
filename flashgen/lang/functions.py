"""Operands brought to one type, and the comparisons and functions of the language on them, as nodes.

What there is to know of a function of one float stands in `elementary.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from flashgen.lang.fold import simplify
from flashgen.lang.magnitudes import may_pass_64_bits
from flashgen.lang.nodes import FLOAT_FUNCTIONS, Expr, Type, const, op

RANK = {Type.BOOL: 0, Type.INT: 1, Type.FLOAT: 2}
_COMPARISONS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}


def promote(node: Expr, to: Type) -> Expr:
    """The node as a type of the same rank or a higher one."""
    if node.type is Type.BOOL and to is not Type.BOOL:
        node = simplify(op("to_int", node))
    return simplify(op("to_float", node)) if node.type is Type.INT and to is Type.FLOAT else node


def common(nodes: Iterable[Expr], least: Type = Type.BOOL) -> list[Expr]:
    """The nodes promoted to the highest of their types, and to `least` at least."""
    nodes = list(nodes)
    highest = max((least, *(node.type for node in nodes)), key=RANK.__getitem__)
    return [promote(node, highest) for node in nodes]


def compare(symbol: str, left: Expr, right: Expr) -> Expr:
    """The comparison that the symbol stands for; only `==` and `!=` compare bools as bools."""
    least = Type.BOOL if symbol in ("==", "!=") else Type.INT
    return simplify(op(_COMPARISONS[symbol], *common([left, right], least)))


def apply_function(name: str, arguments: list[Expr]) -> Expr:
    """A function of FUNCTIONS, but for where and reductions, of as many arguments as it takes."""
    if name in FLOAT_FUNCTIONS:
        return simplify(op(name, promote(arguments[0], Type.FLOAT)))
    if name == "log1p":
        return simplify(op("log", simplify(op("add", const(1.0), promote(arguments[0], Type.FLOAT)))))
    arguments = common(arguments, Type.INT)
    if name in _OF_ONE_NUMBER:
        return _OF_ONE_NUMBER[name](arguments[0])
    if name == "clamp":
        x, low, high = arguments
        return simplify(op("min", simplify(op("max", x, low)), high))
    whole = arguments[0]
    for argument in arguments[1:]:
        whole = simplify(op(name, whole, argument))
    return whole


def _floor(x: Expr) -> Expr:
    return simplify(op("floor", x)) if x.type is Type.FLOAT else x


def _ceil(x: Expr) -> Expr:
    """-floor(-x)."""
    if x.type is not Type.FLOAT:
        return x
    below = _floor(_negated(x))
    if may_pass_64_bits(x):
        # That of infinity is the least integer, which negated is itself.
        below = simplify(op("max", below, const(1 - 2**63)))
    return _negated(below)


def _negated(x: Expr) -> Expr:
    return simplify(op("neg", x))


def _sign(x: Expr) -> Expr:
    """1, 0 or -1, in the type of x."""
    zero, one = (const(0.0), const(1.0)) if x.type is Type.FLOAT else (const(0), const(1))
    below = simplify(op("where", simplify(op("lt", x, zero)), _negated(one), zero))
    return simplify(op("where", simplify(op("gt", x, zero)), one, below))


_OF_ONE_NUMBER: Mapping[str, Callable[[Expr], Expr]] = {
    "abs": lambda x: simplify(op("abs", x)),
    "floor": _floor,
    "ceil": _ceil,
    "sign": _sign,
}
