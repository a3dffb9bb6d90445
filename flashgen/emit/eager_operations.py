"""Operations that eager PyTorch has in another form than the language: `//` and `%`, floor, minima and maxima."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flashgen.emit.eager_signs import is_nonzero, is_positive
from flashgen.lang.infix import Text, binary, call, conditional, keyword, method, number, read
from flashgen.lang.magnitudes import may_pass_64_bits
from flashgen.lang.nodes import Const, Expr, Op, Type
from flashgen.lang.partials import is_tensor
from flashgen.lang.show import SYMBOLS

# min(x, bound) is x clamped from above.
_SIDE = {"min": "max", "max": "min"}


def integer_division(node: Op, operands: Sequence[Text], divides_by_tensor: bool) -> Text:
    """`//` or `%` of integers, one of them a tensor; a zero divisor gives 0."""
    dividend, divisor = operands
    symbol = SYMBOLS[node.name]
    if is_nonzero(node.args[1]):
        return binary(symbol, dividend, divisor)
    if not divides_by_tensor:
        return conditional(divisor, binary(symbol, dividend, divisor), call(read("q.new_tensor"), "0"))
    nonzero = binary("!=", divisor, number(0))
    nowhere_zero = call(read("torch.where"), nonzero, divisor, "1")
    return call(read("torch.where"), nonzero, binary(symbol, dividend, nowhere_zero), "0")


def float_division(node: Op, dividend: Text, divisor: Text) -> Text:
    """The same of floats. Autograd refuses tensors under `//`, and a number % tensor; it takes these forms of them."""
    if node.name == "mod":
        return binary("%", dividend, divisor)
    return call(read("torch.div"), dividend, divisor, 'rounding_mode="floor"')


def floor(node: Op, operand: Text) -> Text:
    """The floor of a tensor as an integer of 64 bits: the nearest where it does not fit, as GPUs have it.

    The tensor is read again where it `may_pass_64_bits`: a CPU makes of those the least integer.
    """
    whole = method(method(operand, "floor"), "long")
    if not may_pass_64_bits(node.args[0]):
        return whole
    beyond = binary(">=", operand, binary("**", number(2.0), number(63)))
    return call(read("torch.where"), beyond, number(2**63 - 1), whole)


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
