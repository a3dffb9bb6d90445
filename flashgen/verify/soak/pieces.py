"""Parts of expressions that are drawn, with bounds of what they may come to."""

from __future__ import annotations

from dataclasses import dataclass, field

INT32 = 2**31 - 1
# Exact floats are multiples of a quarter of at most this size.
EXACT = 2.0**14
# How far below the leaves of an expression gathers may stand in the indices of gathers.
DEEPEST = -2


@dataclass(frozen=True)
class Piece:
    """An expression: its text, type ("bool", "int", "float"), bounds, and whether it is `exact` in every precision.

    `smooth` says that it depends on score or on something else that has a gradient. `tight`: needs no parentheses.
    """

    text: str
    type: str
    low: float = 0.0
    high: float = 1.0
    exact: bool = True
    smooth: bool = False
    tight: bool = False

    def __str__(self) -> str:
        return self.text if self.tight else f"({self.text})"

    @property
    def size(self) -> float:
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True)
class Tensor:
    """An input as expressions see it. `extents` are the sizes of its axes."""

    name: str
    type: str
    extents: tuple[int, ...]
    low: float = 0.0
    high: float = 1.0
    exact: bool = True
    smooth: bool = False


@dataclass
class Scope:
    """What expressions may name, and the names that they have named."""

    scalars: list[Piece]
    tensors: list[Tensor]
    used: set[str] = field(default_factory=set)


def number(value: int | float) -> Piece:
    """A literal, in parentheses where it has a sign."""
    kind = "int" if isinstance(value, int) else "float"
    return Piece(repr(value), kind, value, value, _is_exact(value), tight=value >= 0)


def _is_exact(value: float) -> bool:
    return abs(value) <= EXACT and float(4 * value).is_integer()
