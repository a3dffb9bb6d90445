"""What the parser yields: the shape of an expression's text, before any name or type is looked up."""

from __future__ import annotations

from dataclasses import dataclass, field

from flashgen.errors import Location


@dataclass(frozen=True)
class Syntax:
    """A piece of an expression. `at` is where a person would point; `height` says how deep its parts are nested."""

    at: Location
    height: int = field(default=1, kw_only=True)


@dataclass(frozen=True)
class Literal(Syntax):
    value: bool | int | float


@dataclass(frozen=True)
class Name(Syntax):
    id: str


@dataclass(frozen=True)
class Operation(Syntax):
    """An operator as written ("+", "and", "~", ...) on its one or two operands; `at` is the operator."""

    symbol: str
    operands: tuple[Syntax, ...]


@dataclass(frozen=True)
class Chain(Syntax):
    """Comparisons `operands[0] symbols[0] operands[1] symbols[1] ...`, true where every link is."""

    symbols: tuple[str, ...]
    operands: tuple[Syntax, ...]


@dataclass(frozen=True)
class Conditional(Syntax):
    """`then if test else otherwise`."""

    test: Syntax
    then: Syntax
    otherwise: Syntax


@dataclass(frozen=True)
class Call(Syntax):
    """`function(arguments)`."""

    function: str
    arguments: tuple[Syntax, ...]


@dataclass(frozen=True)
class Index(Syntax):
    """`input[indices]`."""

    input: str
    indices: tuple[Syntax, ...]
