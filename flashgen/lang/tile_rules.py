"""What an operation comes to over a tile, from what its operands come to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from flashgen.lang.fold import simplify
from flashgen.lang.nodes import Const, Expr, Type, const, op


class Ends(NamedTuple):
    """Least and greatest value over a tile, as expressions. A bool's are `all` and `any`."""

    low: Expr
    high: Expr


@dataclass(frozen=True)
class Range:
    """Ends of which each may be unknown: None."""

    low: Expr | None
    high: Expr | None

    @property
    def ends(self) -> Ends | None:
        """Both where both are known."""
        return None if self.low is None or self.high is None else Ends(self.low, self.high)


UNKNOWN = Range(None, None)


def ordered(name: str, a: Ends, b: Ends) -> Ends | None:
    """A comparison of two ranges."""
    if name in ("gt", "ge"):
        return ordered({"gt": "lt", "ge": "le"}[name], b, a)
    if name in ("lt", "le"):
        return Ends(op(name, a.high, b.low), op(name, a.low, b.high))
    if a.low.type is Type.BOOL:
        return None
    # Equal everywhere: both ranges are the same single value. Equal somewhere: only if they overlap.
    every = op("and", op("eq", a.low, b.high), op("eq", b.low, a.high))
    some = op("and", op("le", a.low, b.high), op("le", b.low, a.high))
    return Ends(every, some) if name == "eq" else Ends(op("not", some), op("not", every))


def _absolute(a: Ends) -> Range:
    zero = const(0) if a.low.type is Type.INT else const(0.0)
    largest = op("max", op("neg", a.low), a.high)
    return Range(op("max", zero, op("max", a.low, op("neg", a.high))), largest)


def _multiply(a: Ends, b: Ends) -> Range:
    corners = [op("mul", x, y) for x in a for y in b]
    low = high = corners[0]
    for corner in corners[1:]:
        low, high = op("min", low, corner), op("max", high, corner)
    return Range(simplify(low), simplify(high))


def _divisor(b: Ends) -> Const | None:
    """What is divided by where that is a positive integer."""
    value = b.low
    if value is b.high and isinstance(value, Const) and value.type is Type.INT and value.value > 0:
        return value
    return None


def _floordiv(a: Ends, b: Ends) -> Range:
    divisor = _divisor(b)
    return UNKNOWN if divisor is None else Range(op("floordiv", a.low, divisor), op("floordiv", a.high, divisor))


def _mod(a: Ends, b: Ends) -> Range:
    """x % c runs from low % c to high % c where the whole range lies between two multiples of c, else over 0..c-1."""
    divisor = _divisor(b)
    if divisor is None:
        return UNKNOWN
    together = op("eq", op("floordiv", a.low, divisor), op("floordiv", a.high, divisor))
    low = op("where", together, op("mod", a.low, divisor), const(0))
    high = op("where", together, op("mod", a.high, divisor), const(int(divisor.value) - 1))
    return Range(low, high)


def _by_end(name: str) -> Callable[[Ends, Ends], Range]:
    return lambda a, b: Range(op(name, a.low, b.low), op(name, a.high, b.high))


# By the name of the operation.
RULES: dict[str, Callable[..., Range]] = {
    "add": _by_end("add"),
    "sub": lambda a, b: Range(op("sub", a.low, b.high), op("sub", a.high, b.low)),
    "neg": lambda a: Range(op("neg", a.high), op("neg", a.low)),
    "mul": _multiply,
    "min": _by_end("min"),
    "max": _by_end("max"),
    "abs": _absolute,
    "floordiv": _floordiv,
    "mod": _mod,
    "to_float": lambda a: Range(op("to_float", a.low), op("to_float", a.high)),
    "to_int": lambda a: Range(op("to_int", a.low), op("to_int", a.high)),
}
