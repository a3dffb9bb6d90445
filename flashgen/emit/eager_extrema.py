"""Minima and maxima of Python's floats, NaN where one is: Python's own keep it only where it comes first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flashgen.emit.eager_signs import is_positive
from flashgen.lang.infix import Text, call, conditional, read
from flashgen.lang.nodes import Const, Expr, Op, Type


def scalar_extremum(node: Op, operands: Sequence[Text]) -> Text:
    """min or max of two Python scalars; the second is read again where `reads_second_again`."""
    first, second = operands
    if node.type is Type.FLOAT and _is_number(node.args[0]):
        first, second = second, first
    whole = call(node.name, first, second)
    return conditional(call(read("math.isnan"), second), second, whole) if reads_second_again(node) else whole


def reads_second_again(node: Op) -> bool:
    """Whether either of the two may be NaN, as far as their own forms tell."""
    return node.type is Type.FLOAT and not any(map(_is_number, node.args))


def _is_number(node: Expr) -> bool:
    """Whether a float is surely not NaN."""
    if isinstance(node, Const):
        return not math.isnan(node.value)
    return is_positive(node) or (isinstance(node, Op) and node.name == "to_float")
