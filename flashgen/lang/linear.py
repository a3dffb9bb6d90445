"""Integer expressions as linear forms: sum of coefficient * atom + constant.

Atoms are whatever is not itself a sum: variables, gathers, divisions. Two forms are comparable without knowing any
value when their difference is a constant, which is how a comparison is solved for k and how a sign is read off a mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard
from weakref import WeakKeyDictionary

from flashgen.lang.nodes import Const, Expr, Op, Type, const, op


@dataclass(frozen=True)
class Linear:
    """sum(terms[atom] * atom) + constant, without zero coefficients."""

    terms: Mapping[Expr, int]
    constant: int

    def __add__(self, other: Linear) -> Linear:
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            terms[atom] = terms.get(atom, 0) + coefficient
        return _form(terms, self.constant + other.constant)

    def __mul__(self, factor: int) -> Linear:
        return _form({a: c * factor for a, c in self.terms.items()}, self.constant * factor)

    def __sub__(self, other: Linear) -> Linear:
        return self + other * -1

    def without(self, atom: Expr) -> Linear:
        return Linear({a: c for a, c in self.terms.items() if a is not atom}, self.constant)


def _form(terms: Mapping[Expr, int], constant: int) -> Linear:
    """Numbers as 64 bits hold them: a sum of products wraps to the same value whenever it wraps."""
    wrapped = {atom: _wrap(coefficient) for atom, coefficient in terms.items()}
    return Linear({atom: coefficient for atom, coefficient in wrapped.items() if coefficient}, _wrap(constant))


def _wrap(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


# The forms of sums; that of an atom is the atom, and would keep its own key alive.
_known: WeakKeyDictionary[Expr, Linear] = WeakKeyDictionary()


def linear(expr: Expr) -> Linear:
    """The linear form of an INT expression."""
    if expr not in _known and _is_sum(expr):
        for node in _sums(expr):
            form = _of_sum(node)
            if form is not None:
                _known[node] = form
    return _at_hand(expr)


def _is_sum(node: Expr) -> TypeGuard[Op]:
    return isinstance(node, Op) and node.type is Type.INT and node.name in ("add", "sub", "neg", "mul")


def _sums(expr: Expr) -> list[Op]:
    """What an expression adds up that is a sum itself and has no form yet, operands first."""
    found: dict[Expr, None] = {}
    stack = [(expr, False)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            found[node] = None
        elif _is_sum(node) and node not in _known and node not in found:
            stack += [(node, True), *((arg, False) for arg in node.args)]
    return [node for node in found if isinstance(node, Op)]


def _at_hand(expr: Expr) -> Linear:
    if isinstance(expr, Const):
        return Linear({}, int(expr.value))
    return _known.get(expr) or Linear({expr: 1}, 0)


def _of_sum(node: Op) -> Linear | None:
    """The form of a sum whose operands have theirs; None for an atom."""
    forms = [_at_hand(arg) for arg in node.args]
    if node.name == "neg":
        return forms[0] * -1
    left, right = forms
    if node.name == "add":
        return left + right
    if node.name == "sub":
        return left - right
    if not left.terms:
        return right * left.constant
    return None if right.terms else left * right.constant


def expression(form: Linear) -> Expr:
    """The form as an expression again: positive terms first, then what is subtracted, then the constant.

    The least integer is its own negative in 64 bits, and so it is whether it is added or subtracted.
    """
    result: Expr | None = None
    for atom, coefficient in sorted(form.terms.items(), key=lambda item: item[1] < 0):
        factor = _wrap(abs(coefficient))
        term = atom if factor == 1 else op("mul", atom, const(factor))
        if result is None:
            result = term if coefficient > 0 else op("neg", term)
        else:
            result = op("add" if coefficient > 0 else "sub", result, term)
    if result is None:
        return const(form.constant)
    if form.constant:
        result = op("add" if form.constant > 0 else "sub", result, const(_wrap(abs(form.constant))))
    return result


def difference(left: Expr, right: Expr) -> int | None:
    """left - right when it is the same for every value of the atoms, else None."""
    if left.type is not Type.INT or right.type is not Type.INT:
        return None
    form = linear(left) - linear(right)
    return None if form.terms else form.constant
