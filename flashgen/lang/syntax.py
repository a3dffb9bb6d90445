"""What the parser yields: the shape of an expression's text, before any name or type is looked up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flashgen.errors import Location


@dataclass(frozen=True)
class Syntax:
    """A piece of an expression. `at` is where a person would point; `height` says how deep its parts are nested;
    `bracketed` says that it stood in parentheses.
    """

    at: Location
    height: int = field(default=1, kw_only=True)
    bracketed: bool = field(default=False, kw_only=True, compare=False)


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


def parts(syntax: Syntax) -> tuple[Syntax, ...]:
    """The expressions that a piece is made of."""
    match syntax:
        case Operation(operands=operands) | Chain(operands=operands):
            return operands
        case Conditional(test=test, then=then, otherwise=otherwise):
            return then, test, otherwise
        case Call(arguments=arguments):
            return arguments
        case Index(indices=indices):
            return indices
    return ()


def pieces(syntax: Syntax) -> Iterator[Syntax]:
    """The piece and all that it is made of."""
    stack = [syntax]
    while stack:
        piece = stack.pop()
        yield piece
        stack.extend(reversed(parts(piece)))


def names(syntax: Syntax) -> set[str]:
    """The names in an expression, of scalars and of inputs with an index."""
    found = pieces(syntax)
    return {piece.id if isinstance(piece, Name) else piece.input for piece in found if isinstance(piece, Name | Index)}


def leftmost(syntax: Syntax, *symbols: str) -> tuple[Syntax, list[Operation]]:
    """The operand that binary operations start from, and these, the innermost first: a long sum is no deep recursion.

    Those of certain symbols, or all.
    """
    operations: list[Operation] = []
    while isinstance(syntax, Operation) and len(syntax.operands) == 2 and (not symbols or syntax.symbol in symbols):
        operations.append(syntax)
        syntax = syntax.operands[0]
    return syntax, operations[::-1]


def with_names(syntax: Syntax, meanings: Mapping[str, Syntax]) -> Syntax:
    """The syntax with what names stand for in their place."""
    first, operations = leftmost(syntax)
    if isinstance(first, Name):
        new = meanings.get(first.id, first)
    else:
        new = _with_parts(first, [with_names(part, meanings) for part in parts(first)])
    for operation in operations:
        new = _with_parts(operation, [new, with_names(operation.operands[1], meanings)])
    return new


def _with_parts(syntax: Syntax, inner: Sequence[Syntax]) -> Syntax:
    """The syntax with other expressions in the places of its own."""
    if all(new is old for new, old in zip(inner, parts(syntax), strict=True)):
        return syntax
    height = 1 + max(part.height for part in inner)
    match syntax:
        case Operation() | Chain():
            return replace(syntax, operands=tuple(inner), height=height)
        case Conditional():
            then, test, otherwise = inner
            return replace(syntax, test=test, then=then, otherwise=otherwise, height=height)
        case Call():
            return replace(syntax, arguments=tuple(inner), height=height)
        case Index():
            return replace(syntax, indices=tuple(inner), height=height)
    return syntax
