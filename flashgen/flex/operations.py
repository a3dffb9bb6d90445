"""The one table of torch's operations in the language."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, reduce

from flashgen.flex.alike import replaced
from flashgen.flex.bounds import may_be_negative
from flashgen.flex.values import (
    AXIS,
    NOWHERE,
    POSITIONS,
    NotTraced,
    Value,
    arithmetic,
    bitwise,
    call,
    compare,
    highest,
    inverted,
    literal,
    negative,
    where,
)
from flashgen.lang import vocabulary
from flashgen.lang.nodes import FLOAT_FUNCTIONS, Type
from flashgen.lang.syntax import Call, Literal, Name, Syntax

Operation = Callable[..., Value]

# Numbers of a row whose extreme is written out.
LONGEST_WRITTEN_OUT = 16

# Results of the same value, or of the same value in another dtype.
SAME = frozenset({
    "alias", "detach", "clone", "lift_fresh", "lift_fresh_copy", "view_of", "_to_copy", "to", "convert_element_type",
    "contiguous", "view", "_unsafe_view", "reshape", "expand", "squeeze", "unsqueeze", "device_put", "conj", "real",
})  # fmt: skip

Axes = tuple[int | None, ...]


def _swapped(axes: Axes, one: int, other: int) -> Axes:
    order = list(axes)
    order[one], order[other] = order[other], order[one]
    return tuple(order)


def _with_new(axes: Axes, place: int) -> Axes:
    place %= len(axes) + 1
    return (*axes[:place], None, *axes[place:])


# The same elements with their dimensions in another order, or with new ones of size 1.
TURNED: Mapping[str, Callable[..., Axes]] = {
    "t": lambda axes: axes[::-1],
    "transpose": _swapped,
    "permute": lambda axes, order: tuple(axes[each] for each in order),
    "unsqueeze": _with_new,
}

# Whose results may be too large for integers of few bits, where their operands are not.
GROWING = frozenset({
    "add", "sub", "rsub", "mul", "neg", "abs", "pow", "square", "bitwise_not", "bitwise_left_shift", "__lshift__",
    "dot", "copy", "fill",
})  # fmt: skip

# Results whose values follow from no tensor.
MADE = frozenset({
    "zeros", "ones", "full", "scalar_tensor", "arange", "new_zeros", "new_ones", "new_full", "zeros_like", "ones_like",
    "full_like", "eye", "linspace",
})  # fmt: skip


def _scaled(symbol: str, x: Value, y: Value, alpha: Value | None = None) -> Value:
    """x + alpha * y, or the difference. The sum of two bools is a bool to torch."""
    if alpha is not None and alpha.constant != 1:
        y = arithmetic("*", alpha, y)
    if x.type is y.type is Type.BOOL:
        return bitwise("|", x, y)
    return arithmetic(symbol, x, y)


def _product(x: Value, y: Value) -> Value:
    return bitwise("&", x, y) if x.type is y.type is Type.BOOL else arithmetic("*", x, y)


def _quotient(x: Value, y: Value, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return arithmetic("/", x, y)
    if rounding_mode == "floor":
        return arithmetic("//", x, y)
    mixed = compare("<", x, literal(0))
    if y.constant is None or y.constant < 0:
        mixed = bitwise("^", mixed, compare("<", y, literal(0)))
    return where(mixed, negative(arithmetic("//", negative(x), y)), arithmetic("//", x, y))


def _power(x: Value, y: Value) -> Value:
    if x.type is y.type is Type.INT and x.constant == 2:
        power = bitwise("<<", literal(1), y)
        if not may_be_negative(y.syntax, POSITIONS, causal=False):
            return power
        # A fraction, which is no integer, is 0 to torch.
        return where(compare("<", y, literal(0)), literal(0), power)
    power = arithmetic("**", x, y)
    if highest(x.type, y.type) is not Type.FLOAT and power.held is Type.FLOAT:
        # The language has it as a float, next to the integer that it is; a fraction is 0 to torch.
        margin = where(compare("<", power, literal(0)), literal(-0.25), literal(0.25))
        return arithmetic("+", power, margin).cast(Type.INT)
    return power


def _clamped(x: Value, min: Value | None = None, max: Value | None = None) -> Value:
    if min is not None and max is not None:
        return call("clamp", x, min, max)
    if min is not None:
        return call("max", x, min)
    return x if max is None else call("min", x, max)


def _of_numbers(name: str, x: Value, y: Value) -> Value:
    """The lesser or the greater; beside what is no number, the other."""
    chosen = call(name, x, y)
    for one, other in ((x, y), (y, x)):
        if one.held is Type.FLOAT and not isinstance(one.constant, int | float):
            chosen = where(compare("!=", one, one), other, chosen)
    return chosen


def _truth(x: Value) -> Value:
    return x.cast(Type.BOOL)


def _rectified(x: Value) -> Value:
    """The greater of x and 0, whose derivative at 0 is 0 to torch, where that of max is 1."""
    zero = literal(0)
    return where(compare("<=", x, zero), zero, x) if x.held is Type.FLOAT else call("max", x, zero)


def _logical(symbol: str, x: Value, y: Value) -> Value:
    return bitwise(symbol, _truth(x), _truth(y))


def _filled(x: Value, test: Value, value: Value) -> Value:
    return where(test, value, x)


def _ceiling(x: Value) -> Value:
    return negative(call("floor", negative(x)))


def _sign(x: Value) -> Value:
    return where(compare(">", x, literal(0)), literal(1), where(compare("<", x, literal(0)), literal(-1), literal(0)))


def _remainder_toward_zero(x: Value, y: Value) -> Value:
    whole = arithmetic("//", call("abs", x), call("abs", y))
    rest = arithmetic("-", call("abs", x), arithmetic("*", whole, call("abs", y)))
    return where(compare("<", x, literal(0)), negative(rest), rest)


def _function(name: str) -> Operation:
    """A function of the language, if it has one of this name."""

    def operation(*arguments: Value) -> Value:
        if name not in vocabulary.FUNCTIONS:
            raise NotTraced(f"{name}(), which the language of specs does not have")
        return call(name, *arguments)

    return operation


def _own_or(name: str, otherwise: Operation) -> Operation:
    """The function of the language by this name, or what it amounts to."""
    return _function(name) if name in vocabulary.FUNCTIONS else otherwise


_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_BITWISE = {"and": "&", "or": "|", "xor": "^"}
_SHIFTS = {"lshift": "<<", "rshift": ">>"}

OPERATIONS: Mapping[str, Operation] = {
    "add": partial(_scaled, "+"),
    "sub": partial(_scaled, "-"),
    "rsub": lambda x, y, alpha=None: _scaled("-", y, x, alpha),
    "mul": _product,
    "div": _quotient,
    "true_divide": _quotient,
    "floor_divide": partial(arithmetic, "//"),
    "remainder": partial(arithmetic, "%"),
    "fmod": _remainder_toward_zero,
    "pow": _power,
    "neg": negative,
    "abs": _function("abs"),
    "minimum": _function("min"),
    "maximum": _function("max"),
    "fmin": partial(_of_numbers, "min"),
    "fmax": partial(_of_numbers, "max"),
    "clamp": _clamped,
    "clamp_min": lambda x, bound: call("max", x, bound),
    "clamp_max": lambda x, bound: call("min", x, bound),
    "where": where,
    "copy": lambda into, source, non_blocking=None: source,
    "fill": lambda into, value: value,
    "zero": lambda into: literal(0),
    "masked_fill": _filled,
    "logical_not": lambda x: inverted(_truth(x)),
    "bitwise_not": inverted,
    "isinf": lambda x: compare("==", call("abs", x), literal(math.inf)),
    "isneginf": lambda x: compare("==", x, literal(-math.inf)),
    "floor": lambda x: call("floor", x) if x.held is Type.FLOAT else x,
    "ceil": lambda x: _own_or("ceil", _ceiling)(x) if x.held is Type.FLOAT else x,
    "trunc": lambda x: x.cast(Type.INT) if x.held is Type.FLOAT else x,
    "sign": _own_or("sign", _sign),
    "sgn": _own_or("sign", _sign),
    "reciprocal": lambda x: arithmetic("/", literal(1), x),
    "rsqrt": lambda x: arithmetic("/", literal(1), call("sqrt", x)),
    "square": lambda x: arithmetic("**", x, literal(2)),
    "log1p": _own_or("log1p", lambda x: call("log", arithmetic("+", literal(1), x))),
    "log10": lambda x: arithmetic("/", call("log", x), literal(math.log(10))),
    "expm1": lambda x: arithmetic("-", call("exp", x), literal(1)),
    "silu": lambda x: arithmetic("*", x, call("sigmoid", x)),
    "relu": _rectified,
    **{name: partial(compare, symbol) for name, symbol in _COMPARISONS.items()},
    **{f"bitwise_{name}": partial(bitwise, symbol) for name, symbol in _BITWISE.items()},
    **{f"__{name}__": partial(bitwise, symbol) for name, symbol in _BITWISE.items()},
    **{f"logical_{name}": partial(_logical, symbol) for name, symbol in _BITWISE.items()},
    **{f"__{name}__": partial(bitwise, symbol) for name, symbol in _SHIFTS.items()},
    "bitwise_left_shift": partial(bitwise, "<<"),
    "bitwise_right_shift": partial(bitwise, ">>"),
    # By the same name in the language.
    **{name: _function(name) for name in FLOAT_FUNCTIONS},
}  # fmt: skip


# What they make of a row that has no place; an input of the language has an element at least.
_OF_NO_PLACE: Mapping[str, int] = {"sum": 0, "any": False, "all": True}


def _over(function: str, length: int | None, x: Value) -> Value:
    """A function over a row: the value of each place, which a number has alone."""
    if function not in vocabulary.FUNCTIONS:
        raise NotTraced(f"{function}() over a row, which the language of specs does not have")
    if length is None:
        return x
    if length == 0:
        return literal(_OF_NO_PLACE[function])
    arguments = (Name(NOWHERE, AXIS), Literal(NOWHERE, length), x.syntax)
    syntax = Call(NOWHERE, function, arguments, height=x.syntax.height + 1)
    least = Type.INT if function == "sum" else Type.BOOL
    return Value(syntax, highest(x.type, least), highest(x.held, least))


def _mean(length: int | None, x: Value) -> Value:
    return arithmetic("/", _over("sum", length, x), literal(1 if length is None else length))


def _extreme(function: str, length: int | None, x: Value) -> Value:
    """The greatest or the least of a row, written out: the language has no function for it."""
    if length is None:
        return x
    if length > LONGEST_WRITTEN_OUT:
        raise NotTraced(f"{function} over a row of {length}; expected at most {LONGEST_WRITTEN_OUT} numbers")
    return reduce(OPERATIONS[function], (number_at(place, x) for place in range(length)))


def number_at(place: int, x: Value) -> Value:
    """The number at a place of a row."""

    def other(syntax: Syntax) -> Syntax | None:
        if isinstance(syntax, Name) and syntax.id == AXIS:
            return Literal(NOWHERE, place)
        # Within it the name is another row's.
        return syntax if isinstance(syntax, Call) and syntax.function in vocabulary.REDUCTIONS else None

    (syntax,) = replaced([x.syntax], other)
    return replace(x, syntax=syntax)


# What becomes of a row of so many numbers; None for a number that is no row.
REDUCTIONS: Mapping[str, Callable[..., Value]] = {
    "sum": partial(_over, "sum"),
    "any": lambda length, x: _over("any", length, _truth(x)),
    "all": lambda length, x: _over("all", length, _truth(x)),
    "dot": lambda length, x, y: _over("sum", length, _product(x, y)),
    "mean": _mean,
    "amax": partial(_extreme, "maximum"),
    "amin": partial(_extreme, "minimum"),
}
