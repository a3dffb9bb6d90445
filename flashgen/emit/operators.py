"""Each operator of the language in Triton or Gluon, with the language's semantics where their own differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flashgen.analysis.levels import COL, level
from flashgen.analysis.packed import is_stride
from flashgen.emit.dialects import Dialect
from flashgen.lang.infix import Text, binary, call, method, number, prefix
from flashgen.lang.interval import LARGEST_FLOAT32, LEAST_FLOAT32
from flashgen.lang.intervals import INT32, Ranges
from flashgen.lang.nodes import COMPARISONS, FLOAT_FUNCTIONS, Const, Expr, Op, Type
from flashgen.lang.powers import factors, is_of_two
from flashgen.lang.show import BITWISE, SYMBOLS

_INFIX = BITWISE | {name: SYMBOLS[name] for name in ("add", "sub", "mul", "truediv", *COMPARISONS)}
_CALLS = {
    "min": "minimum", "max": "maximum",
    **{name: name for name in ("abs", "where", "exp", "exp2", "log", "log2", "sqrt", "sigmoid")},
}  # fmt: skip
# Triton's own leave NaN out.
_OF_FLOATS = {"min": "float_min", "max": "float_max"}
_MAY_OVERFLOW = frozenset({"add", "sub", "mul", "neg", "pow", "shl", "abs", "floordiv", "not"})


@dataclass
class Operators:
    """Writes operations whose operands are text already, some as calls of runtime/device.

    `several_tiles`: a vector of keys is several tiles of them, each with a minimum and maximum of its own.
    `approximate`: functions that the GPU has an approximation of are taken from there.
    """

    dialect: Dialect
    ranges: Ranges
    several_tiles: bool = True
    approximate: bool = False

    def write(self, node: Op, operands: Sequence[Text]) -> Text:
        operands = [self._widened(node, *pair) for pair in zip(node.args, operands, strict=True)]
        if node.name in _INFIX:
            return binary(_INFIX[node.name], *operands)
        if node.name in _OF_FLOATS and node.type is Type.FLOAT:
            return call(_OF_FLOATS[node.name], *operands)
        if node.name in _CALLS:
            return self.dialect.call(_CALLS[node.name], *operands)
        if node.name in ("neg", "not"):
            return prefix("-" if node.name == "neg" else "~", *operands)
        return _SPECIAL[node.name](self, node, operands)

    def _widened(self, node: Op, operand: Expr, text: Text) -> Text:
        """An operand as a 64-bit integer where 32 bits might overflow."""
        if node.type is not Type.INT or node.name not in _MAY_OVERFLOW or self.ranges.fits_int32(node):
            return text
        if isinstance(operand, Const) or not self.ranges.fits_int32(operand):
            return text
        # Triton compiles a stride of 1 in, as a number, which has no methods.
        return self._cast(text, "int64") if is_stride(operand) else self.wide(text)

    def _cast(self, text: Text, dtype: str) -> Text:
        return self.dialect.call("cast", text, self.dialect.name(dtype))

    def converted(self, text: Text, dtype: str) -> Text:
        return method(text, "to", self.dialect.name(dtype))

    def wide(self, text: Text) -> Text:
        return self.converted(text, "int64")

    def literal(self, value: bool | int | float) -> Text:
        """A number that Triton takes as int32 or float32, else as int64.

        By itself it would take large integers as unsigned, and floats outside float32 as float64.
        """
        if isinstance(value, float):
            return self._float32(value)
        if INT32.low <= value <= INT32.high:
            return number(value)
        return self._cast(number(value), "int64")

    def _float32(self, value: float) -> Text:
        """A literal; what float32 does not hold is rounded to it."""
        size = abs(value)
        if math.isnan(value):
            return Text('float("nan")')
        if size > LARGEST_FLOAT32:
            return Text('float("inf")') if value > 0 else prefix("-", Text('float("inf")'))
        if 0 < size <= LEAST_FLOAT32 * 2.0**-24:
            return number(0.0)
        if 0 < size < LEAST_FLOAT32:
            return self._cast(number(value), "float32")
        return number(value)

    def _tanh(self, node: Op, operands: Sequence[Text]) -> Text:
        """Exact for float32 inputs, fast for the others: the kernel knows PRECISE; or the GPU's own for a cap."""
        if self.approximate and node.name == "softcap":
            return call("tanh_approx", *operands)
        return call("tanh", *operands, Text("PRECISE"))

    def _own(self, node: Op, operands: Sequence[Text]) -> Text:
        """A function of runtime/device by its name."""
        return call(node.name, *operands)

    def _to_float(self, node: Op, operands: Sequence[Text]) -> Text:
        return self.converted(operands[0], "float32")

    def _to_int(self, node: Op, operands: Sequence[Text]) -> Text:
        return self.converted(operands[0], "int32")

    def _floor(self, node: Op, operands: Sequence[Text]) -> Text:
        dtype = "int32" if self.ranges.fits_int32(node) else "int64"
        return self.converted(self.dialect.call("floor", *operands), dtype)

    def _trunc(self, node: Op, operands: Sequence[Text]) -> Text:
        return self.converted(operands[0], "int32")

    def _division(self, node: Op, operands: Sequence[Text]) -> Text:
        """floordiv and mod. Triton's own truncate, so they serve only where both operands are natural numbers."""
        is_quotient = node.name == "floordiv"
        if node.type is Type.FLOAT:
            return call("float_floordiv" if is_quotient else "float_mod", *operands)
        dividend, divisor = node.args
        known = int(divisor.value) if isinstance(divisor, Const) else 0
        if known > 0 and self.ranges.of(dividend).low >= 0:
            return binary(SYMBOLS[node.name], *operands)
        if known > 0 and known & (known - 1) == 0:
            # A power of two: shifts and masks round toward minus infinity.
            if not is_quotient:
                return binary("&", operands[0], self.literal(known - 1))
            # By the width of its operand or more, a GPU's shift is anything; the last bit leaves the sign alone too.
            sign_bit = 31 if self.ranges.fits_int32(dividend) else 63
            return binary(">>", operands[0], number(min(known.bit_length() - 1, sign_bit)))
        return call(("floor_div" if is_quotient else "floor_mod") + ("" if known else "_or_zero"), *operands)

    def _remainder(self, node: Op, operands: Sequence[Text]) -> Text:
        """mod, from the quotient."""
        dividend, divisor, quotient = operands
        divisors = self.ranges.of(node.args[1])
        if divisors.low > 0 or divisors.high < 0:
            return binary("-", dividend, binary("*", quotient, divisor))
        return call("remainder_or_zero", dividend, quotient, divisor)

    def _shift(self, node: Op, operands: Sequence[Text]) -> Text:
        if self.ranges.of(node.args[1]).within(0, 31):
            return binary(SYMBOLS[node.name], *operands)
        shifted = call("shift_left" if node.name == "shl" else "shift_right", *operands)
        return self.converted(shifted, "int32") if self.ranges.fits_int32(node) else shifted

    def _pow(self, node: Op, operands: Sequence[Text]) -> Text:
        if factors(node):
            product = operands[0]
            for _ in range(1, factors(node)):
                product = binary("*", product, operands[0])
            return product
        if is_of_two(node):
            return self.dialect.call("exp2", operands[1])
        return call("power" if node.type is Type.FLOAT else "integer_power", *operands)

    def _reduction(self, node: Op, operands: Sequence[Text]) -> Text:
        """One number, or one for each tile of keys."""
        function = "min" if node.name == "tile_min" else "max"
        axis = ["1"] if self.several_tiles and level(node) & COL else []
        if node.type is Type.BOOL:
            counted = self.converted(operands[0], "int32")
            return binary("!=", self.dialect.call(function, counted, *axis), number(0))
        return self.dialect.call(function, operands[0], *axis)


_SPECIAL: dict[str, Callable[[Operators, Op, Sequence[Text]], Text]] = {
    "to_float": Operators._to_float,
    "to_int": Operators._to_int,
    "floor": Operators._floor,
    "trunc": Operators._trunc,
    "floordiv": Operators._division,
    "mod": Operators._division,
    **dict.fromkeys(("reciprocal_of", "quotient", "sech2"), Operators._own),
    "floordiv_by": lambda operators, node, operands: call("floor_div_by", *operands),
    "remainder_of": Operators._remainder,
    "shl": Operators._shift,
    "shr": Operators._shift,
    "pow": Operators._pow,
    # What Triton has no function for, or one that branches for each element, as its sin, cos and erf do.
    **dict.fromkeys(FLOAT_FUNCTIONS - _CALLS.keys(), Operators._own),
    **dict.fromkeys(("tanh", "softcap"), Operators._tanh),
    "tile_min": Operators._reduction,
    "tile_max": Operators._reduction,
}
