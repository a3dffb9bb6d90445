"""Integer expressions as linear forms: sum of coefficient * atom + constant.

Atoms are whatever is not itself a sum: variables, gathers, divisions. Two forms are comparable without knowing any
value when their difference is a constant, which is how a comparison is solved for k and how a sign is read off a mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
        return Linear({a: c for a, c in terms.items() if c}, self.constant + other.constant)

    def __mul__(self, factor: int) -> Linear:
        return Linear({a: c * factor for a, c in self.terms.items() if factor}, self.constant * factor)

    def __sub__(self, other: Linear) -> Linear:
        return self + other * -1

    def without(self, atom: Expr) -> Linear:
        return Linear({a: c for a, c in self.terms.items() if a is not atom}, self.constant)


def linear(expr: Expr) -> Linear:
    """The linear form of an INT expression."""
    if isinstance(expr, Const):
        return Linear({}, int(expr.value))
    if isinstance(expr, Op):
        if expr.name == "add":
            return linear(expr.args[0]) + linear(expr.args[1])
        if expr.name == "sub":
            return linear(expr.args[0]) - linear(expr.args[1])
        if expr.name == "neg":
            return linear(expr.args[0]) * -1
        if expr.name == "mul":
            left, right = linear(expr.args[0]), linear(expr.args[1])
            if not left.terms:
                return right * left.constant
            if not right.terms:
                return left * right.constant
    return Linear({expr: 1}, 0)


def expression(form: Linear) -> Expr:
    """The form as an expression again: positive terms first, then what is subtracted, then the constant."""
    result: Expr | None = None
    for atom, coefficient in sorted(form.terms.items(), key=lambda item: item[1] < 0):
        factor = abs(coefficient)
        term = atom if factor == 1 else op("mul", atom, const(factor))
        if result is None:
            result = term if coefficient > 0 else op("neg", term)
        else:
            result = op("add" if coefficient > 0 else "sub", result, term)
    if result is None:
        return const(form.constant)
    if form.constant:
        result = op("add" if form.constant > 0 else "sub", result, const(abs(form.constant)))
    return result


def difference(left: Expr, right: Expr) -> int | None:
    """left - right when it is the same for every value of the atoms, else None."""
    if left.type is not Type.INT or right.type is not Type.INT:
        return None
    form = linear(left) - linear(right)
    return None if form.terms else form.constant
