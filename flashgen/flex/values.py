"""What a tensor stands for while a mod is traced: an expression of the language, or elements of an input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from flashgen.errors import Location
from flashgen.lang.nodes import Type
from flashgen.lang.syntax import Call, Chain, Literal, Name, Operation, Syntax

NOWHERE = Location("")
POSITIONS = ("b", "h", "q", "k")
# The index of what goes over a row.
AXIS = "i"
NARROW = (torch.uint8, torch.int8, torch.int16)
_RANK = {Type.BOOL: 0, Type.INT: 1, Type.FLOAT: 2}


class NotTraced(BaseException):
    """A mod does what the language does not have; the message says what. `reason` is its end.

    No Exception: a mod that catches those of torch does not catch this one.
    """

    def __init__(self, reason: str, within: str = "") -> None:
        self.reason = reason
        super().__init__(f"{within}: {reason}" if within else reason)


@dataclass(frozen=True, eq=False)
class Value:
    """A scalar. `type` is that of the tensor; `held` that of the expression, which may be lower: `q.float()` is q.

    `numbers` are the captured numbers that it is made of where it is made of nothing else, None where it is.
    """

    syntax: Syntax
    type: Type
    held: Type
    numbers: frozenset[str] | None = None

    @property
    def constant(self) -> bool | int | float | None:
        """Its value, if it is written as one."""
        return self.syntax.value if isinstance(self.syntax, Literal) else None

    def cast(self, to: Type) -> Value:
        """The value of another type, as torch's `to` makes it: toward zero from a float to an int."""
        if to is Type.BOOL and self.held is not Type.BOOL:
            return compare("!=", self, literal(0))
        if to is Type.INT and self.held is Type.FLOAT:
            return replace(_truncated(self), type=to)
        return replace(self, type=to)


@dataclass(frozen=True)
class Input:
    """A captured tensor under its name; what stands in for it has its shape and no memory. `sizes` are the names of its
    dimensions where they are as long as they happen to be.
    """

    name: str
    stand_in: torch.Tensor
    is_learned: bool
    sizes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Number:
    """A captured number under its name."""

    name: str
    stand_in: torch.Tensor
    is_natural: bool


@dataclass(frozen=True, eq=False)
class Elements:
    """An input, or what is left of it: `indices` are those of its dimensions, None where there is none yet. `free` are
    the dimensions that are left, in the order in which torch has them now, None for one of size 1 that is no dimension
    of the input. `element` is the dtype to torch; `held` the type of the input, which may be lower; `sizes` the names
    of its dimensions.
    """

    name: str
    element: torch.dtype
    held: Type
    indices: tuple[Syntax | None, ...]
    sizes: tuple[str, ...]
    free: tuple[int | None, ...]

    @classmethod
    def whole(cls, name: str, dtype: torch.dtype, sizes: tuple[str, ...]) -> Elements:
        """All of an input."""
        rank = len(sizes)
        return cls(name, dtype, type_of(dtype), (None,) * rank, sizes, tuple(range(rank)))

    def at(self, places: Mapping[int, Syntax]) -> Elements:
        """What is left at these places, by their number among the dimensions that are left."""
        taken = {self.free[number]: place for number, place in places.items()}
        indices = tuple(taken.get(axis, index) for axis, index in enumerate(self.indices))
        free = tuple(axis for number, axis in enumerate(self.free) if number not in places)
        return replace(self, indices=indices, free=free)


def dimension(tensor: str, axis: int, rank: int) -> str:
    """What a dimension of an input that is as long as it happens to be is best called."""
    if rank == 1:
        return f"{tensor}_len"
    return f"{tensor}_{('rows', 'cols')[axis]}" if rank == 2 else f"{tensor}_size{axis}"


def type_of(dtype: torch.dtype) -> Type:
    """The type of the language that has the values of a dtype."""
    if dtype == torch.bool:
        return Type.BOOL
    return Type.FLOAT if dtype.is_floating_point else Type.INT


def literal(value: bool | int | float | np.generic) -> Value:
    value = value.item() if isinstance(value, np.generic) else value
    kind = Type.BOOL if isinstance(value, bool) else Type.INT if isinstance(value, int) else Type.FLOAT
    if value != value:
        # The language has no word for it.
        return arithmetic("-", literal(np.inf), literal(np.inf))
    return Value(Literal(NOWHERE, value), kind, kind, frozenset())


def name(text: str, kind: Type, numbers: frozenset[str] | None = None) -> Value:
    return Value(Name(NOWHERE, text), kind, kind, numbers)


def highest(*types: Type) -> Type:
    return max(types, key=_RANK.__getitem__)


def _made_of(*values: Value) -> frozenset[str] | None:
    """The numbers that a result depends on."""
    known = [value.numbers for value in values if value.numbers is not None]
    return frozenset().union(*known) if len(known) == len(values) else None


def _height(*values: Value) -> int:
    return 1 + max(value.syntax.height for value in values)


def arithmetic(symbol: str, x: Value, y: Value) -> Value:
    """`+ - * // % / **` as torch has them."""
    kind, held = highest(x.type, y.type, Type.INT), highest(x.held, y.held, Type.INT)
    if symbol == "/":
        kind = held = Type.FLOAT
    elif kind is Type.FLOAT and held is Type.INT:
        # The operands are floats to torch, and may go beyond integers.
        x, held = _spelled_out(x), Type.FLOAT
    if symbol == "**" and held is Type.INT and not isinstance(y.constant, int):
        held = Type.FLOAT
    return Value(Operation(NOWHERE, symbol, (x.syntax, y.syntax), height=_height(x, y)), kind, held, _made_of(x, y))


def _spelled_out(x: Value) -> Value:
    one = Literal(NOWHERE, 1.0)
    return Value(Operation(NOWHERE, "*", (one, x.syntax), height=_height(x)), Type.FLOAT, Type.FLOAT, x.numbers)


def bitwise(symbol: str, x: Value, y: Value) -> Value:
    """`& | ^ << >>` on bools or integers. What is true or false for certain is left out."""
    if symbol in "&|" and x.held is y.held is Type.BOOL:
        neutral, certain = (True, False) if symbol == "&" else (False, True)
        for one, other in ((x, y), (y, x)):
            if one.constant is neutral:
                return other
            if one.constant is certain:
                return one
    least = Type.INT if symbol in ("<<", ">>") else Type.BOOL
    syntax = Operation(NOWHERE, symbol, (x.syntax, y.syntax), height=_height(x, y))
    return Value(syntax, highest(x.type, y.type, least), highest(x.held, y.held, least), _made_of(x, y))


def holds(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Whether a dtype has all values of the other, but for what floats round."""
    if dtype.is_floating_point or other == torch.bool or dtype == other:
        return True
    if other.is_floating_point or dtype == torch.bool:
        return False
    inner, outer = torch.iinfo(other), torch.iinfo(dtype)
    return outer.min <= inner.min and inner.max <= outer.max


def wrapped(x: Value, dtype: torch.dtype) -> Value:
    """What is left of an integer in a dtype of few bits, which may be too few for it."""
    if dtype not in NARROW or x.held is Type.BOOL:
        return x
    limits = torch.iinfo(dtype)
    mask, least = literal(limits.max - limits.min), literal(-limits.min)
    if not limits.min:
        return bitwise("&", x, mask)
    return arithmetic("-", bitwise("&", arithmetic("+", x, least), mask), least)


def wrapped_number(number: int, dtype: torch.dtype) -> int:
    """A number in a dtype of few bits."""
    limits = torch.iinfo(dtype)
    return (number - limits.min) % (1 << limits.bits) + limits.min


def compare(symbol: str, x: Value, y: Value) -> Value:
    syntax = Chain(NOWHERE, (symbol,), (x.syntax, y.syntax), height=_height(x, y))
    return Value(syntax, Type.BOOL, Type.BOOL, _made_of(x, y))


def negative(x: Value) -> Value:
    if isinstance(x.constant, int | float) and not isinstance(x.constant, bool):
        return literal(-x.constant)
    held = highest(x.held, Type.INT)
    return Value(Operation(NOWHERE, "-", (x.syntax,), height=_height(x)), x.type, held, x.numbers)


def inverted(x: Value) -> Value:
    """`~x`: of a comparison the other one, unless it may be of NaN. Of an integer that a bool holds it is -1 - x."""
    if x.type is not Type.BOOL and x.held is Type.BOOL:
        return arithmetic("-", literal(-1), x)
    if isinstance(x.constant, bool):
        return literal(not x.constant)
    return Value(Operation(NOWHERE, "~", (x.syntax,), height=_height(x)), x.type, x.held, x.numbers)


# Of functions not here the result is a float.
_SAME_TYPE = frozenset({"abs", "min", "max", "clamp", "sign"})
_TO_INT = frozenset({"floor", "ceil"})


def call(function: str, *arguments: Value) -> Value:
    """A function of the language."""
    syntax = Call(NOWHERE, function, tuple(each.syntax for each in arguments), height=_height(*arguments))
    kinds = [(value.type, value.held) for value in arguments]
    if function == "where":
        kinds = kinds[1:]
    elif function not in _SAME_TYPE:
        kinds = [(Type.FLOAT, Type.INT if function in _TO_INT else Type.FLOAT)]
    held = highest(*(held for _, held in kinds), *([Type.INT] if function in _SAME_TYPE else []))
    return Value(syntax, highest(*(kind for kind, _ in kinds)), held, _made_of(*arguments))


def where(test: Value, x: Value, y: Value) -> Value:
    """`where` as torch has it; with True or False in a branch what it says of tests."""
    if isinstance(test.constant, bool):
        return x if test.constant else y
    if y.constant is False and x.held is Type.BOOL:
        return bitwise("&", test, x)
    if x.constant is True and y.held is Type.BOOL:
        return bitwise("|", test, y)
    return call("where", test, x, y)


def _truncated(x: Value) -> Value:
    return where(compare("<", x, literal(0)), negative(call("floor", negative(x))), call("floor", x))
