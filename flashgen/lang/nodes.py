"""The typed expression graph that every reader of the language shares.

Nodes are immutable and interned: two equal expressions are one object, so equality is identity, shared
subexpressions stay shared, and any pass may memoise on the node itself. Build them with `const`, `var`,
`gather` and `op`; operands of arithmetic already have the same type (the checker inserts casts).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from weakref import WeakValueDictionary

from flashgen.lang.elementary import DERIVED, ELEMENTARY


class Type(Enum):
    """The three types of the language, in the order of promotion."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"


@dataclass(frozen=True, eq=False)
class Expr:
    """A node. `type` is the type of its value."""

    type: Type

    @property
    def children(self) -> tuple[Expr, ...]:
        return ()

    def __reduce__(self) -> tuple[Callable[..., Expr], tuple]:
        """In another process it is made anew, the one node of its kind there too."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Const(Expr):
    """A literal, or a param baked in at build time."""

    value: bool | int | float

    def __reduce__(self) -> tuple[Callable[..., Expr], tuple]:
        return const, (self.value,)


@dataclass(frozen=True, eq=False)
class Var(Expr):
    """A name that the kernel knows: `score`, a position, a size, or a runtime param."""

    name: str

    def __reduce__(self) -> tuple[Callable[..., Expr], tuple]:
        return var, (self.name, self.type)


@dataclass(frozen=True, eq=False)
class Gather(Expr):
    """An element of an input tensor: `input[indices]`, one integer index per dimension."""

    input: str
    indices: tuple[Expr, ...]

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.indices

    def __reduce__(self) -> tuple[Callable[..., Expr], tuple]:
        return gather, (self.input, self.indices, self.type)


@dataclass(frozen=True, eq=False)
class Op(Expr):
    """An operator or function of `OPERATORS` applied to its operands."""

    name: str
    args: tuple[Expr, ...]

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.args

    def __reduce__(self) -> tuple[Callable[..., Expr], tuple]:
        return op, (self.name, *self.args)


@dataclass(frozen=True, eq=False)
class Index(Expr):
    """What counts the terms of reductions, from 0 to below `length`; `word` is what its author called it."""

    word: str
    length: Expr

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.length,)

    def __reduce__(self) -> tuple[Callable[..., Expr], tuple]:
        return index, (self.word, self.length)


@dataclass(frozen=True, eq=False)
class Reduction(Expr):
    """any, all or sum of a term, from the first on, over an index whose length a call decides.

    Of no terms, any is false, all is true and a sum is 0. The checker writes out short ones of a known length.
    """

    name: str
    index: Index
    term: Expr

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.index, self.term)

    def __reduce__(self) -> tuple[Callable[..., Expr], tuple]:
        return reduction, (self.name, self.index, self.term)


# name -> number of operands. Semantics where they could surprise:
#   floordiv, mod   round toward minus infinity, on ints and floats; a zero int divisor gives 0
#   truediv         float operands only; pow: float ** float, or int ** non-negative constant int
#   and or xor not  on two bools, or on two ints bit by bit
#   shl shr         counts outside 0..63 are taken as the nearest inside
#   floor           float -> int; to_int: bool -> int; to_float: int -> float
#   where           (bool, x, x) -> x
#   tile_min tile_max  least and greatest value over the tile's rows or columns; all and any for a bool.
#                   Only `tiles` makes them; the language has no such functions
#   reciprocal_of   what floordiv_by divides by, for an int: floordiv_by(x, reciprocal_of(y)) is floordiv(x, y), and
#                   remainder_of(x, y, floordiv(x, y)) is mod(x, y). Only kernels' expressions have them, and quotient:
#                   truediv to the last bit; trunc: float -> int toward zero, of what fits 32 bits
OPERATORS: dict[str, int] = {
    "add": 2, "sub": 2, "mul": 2, "truediv": 2, "floordiv": 2, "mod": 2, "pow": 2, "neg": 1,
    "lt": 2, "le": 2, "gt": 2, "ge": 2, "eq": 2, "ne": 2,
    "and": 2, "or": 2, "xor": 2, "not": 1, "shl": 2, "shr": 2,
    "abs": 1, "min": 2, "max": 2, "where": 3,
    "floor": 1, "to_int": 1, "to_float": 1, "tile_min": 1, "tile_max": 1,
    "reciprocal_of": 1, "floordiv_by": 2, "remainder_of": 3, "quotient": 2, "trunc": 1,
    **dict.fromkeys((*ELEMENTARY, *DERIVED), 1),
}  # fmt: skip

# What holds of integers, which are never NaN, where a comparison does not; and what it is with its operands exchanged.
NEGATED = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
COMPARISONS = frozenset(NEGATED)
FLOAT_FUNCTIONS, DERIVED_FUNCTIONS = frozenset(ELEMENTARY), frozenset(DERIVED)

_interned: WeakValueDictionary[tuple, Expr] = WeakValueDictionary()


def _intern(key: tuple, make: Callable[[], Expr]) -> Expr:
    node = _interned.get(key)
    if node is None:
        node = make()
        _interned[key] = node
    return node


def const(value: bool | int | float) -> Expr:
    kind = Type.BOOL if isinstance(value, bool) else Type.INT if isinstance(value, int) else Type.FLOAT
    # repr keeps -0.0 apart from 0.0 and lets NaN equal itself.
    return _intern(("const", kind, repr(value)), lambda: Const(kind, value))


def var(name: str, type: Type) -> Expr:
    return _intern(("var", name, type), lambda: Var(type, name))


def gather(input: str, indices: tuple[Expr, ...], type: Type) -> Expr:
    return _intern(("gather", input, indices, type), lambda: Gather(type, input, indices))


def index(word: str, length: Expr) -> Index:
    node = _intern(("index", word, length), lambda: Index(Type.INT, word, length))
    assert isinstance(node, Index)
    return node


def reduction(name: str, index: Index, term: Expr) -> Expr:
    return _intern(("reduction", name, index, term), lambda: Reduction(term.type, name, index, term))


def op(name: str, *args: Expr) -> Expr:
    """An operator node; its type follows from the operator and the operands."""
    if len(args) != OPERATORS[name]:
        raise ValueError(f"{name} takes {OPERATORS[name]} operands, not {len(args)}")
    return _intern(("op", name, args), lambda: Op(_result_type(name, args), name, args))


def _result_type(name: str, args: tuple[Expr, ...]) -> Type:
    if name in COMPARISONS:
        return Type.BOOL
    if name in ("floor", "trunc", "to_int"):
        return Type.INT
    if name == "to_float" or name == "truediv" or name in FLOAT_FUNCTIONS | DERIVED_FUNCTIONS:
        return Type.FLOAT
    return args[1].type if name == "where" else args[0].type


TRUE, FALSE = const(True), const(False)
