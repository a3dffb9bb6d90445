"""Minima and maxima in eager PyTorch: of numbers, of a tensor and a bound, of two tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flashgen.emit.eager_signs import is_positive
from flashgen.lang.infix import Text, call, conditional, keyword, method, read
from flashgen.lang.nodes import Const, Expr, Op, Type
from flashgen.lang.partials import is_tensor

# min(x, bound) is x clamped from above.
_SIDE = {"min": "max", "max": "min"}


def bounded(name: str, tensor: Text, bound: Text) -> Text:
    """min or max of a tensor and a bound, a number or a tensor, that has no gradient."""
    return method(tensor, "clamp", keyword(_SIDE[name], bound))


def extremum_of_tensors(node: Op, operands: Sequence[Text]) -> Text:
    """Of equal tensors both share a gradient; what is the same for all pairs is a bound, also where it is a tensor."""
    vary = [is_tensor(x) for x in node.args]
    if node.type is not Type.FLOAT or all(vary):
        return call(read("torch.minimum" if node.name == "min" else "torch.maximum"), *operands)
    tensor, bound = operands if vary[0] else reversed(operands)
    return bounded(node.name, tensor, bound)


def scalar_extremum(node: Op, operands: Sequence[Text]) -> Text:
    """Of two Python scalars, NaN where one is: Python's own keep it only in front.

    The second is read again where `reads_second_again`.
    """
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
