"""`//` and `%` of tensors in eager PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

from flashgen.emit.eager_signs import is_nonzero
from flashgen.lang.infix import Text, binary, call, conditional, number, read
from flashgen.lang.nodes import Op
from flashgen.lang.show import SYMBOLS


def integer_division(node: Op, operands: Sequence[Text], divides_by_tensor: bool) -> Text:
    """A zero divisor gives 0."""
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
    """Autograd refuses tensors under `//`, and a number % tensor; it takes these forms of them."""
    if node.name == "mod":
        return binary("%", dividend, divisor)
    return call(read("torch.div"), dividend, divisor, 'rounding_mode="floor"')
