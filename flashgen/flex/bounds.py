"""Whether an index may count from the end of a tensor: to torch -1 is the last element, to the language the first."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from flashgen.lang.syntax import Call, Index, Literal, Name, Operation, Syntax, leftmost

# A sum of names times coefficients; "" has the constant. None: nothing is known.
Linear = Mapping[str, int]
Bound = Linear | None
ZERO: Linear = {}


def may_be_negative(index: Syntax, natural: Collection[str], causal: bool) -> bool:
    """Unless it is certain that it is not; `natural` are the names of scalars, and of inputs, that are never below 0.

    `causal`: k is never above q.
    """
    return not _Bounds(natural, causal).is_natural(index)


class _Bounds:
    def __init__(self, natural: Collection[str], causal: bool) -> None:
        self._natural, self._causal = natural, causal

    def is_natural(self, syntax: Syntax) -> bool:
        return self._holds(self.least(syntax))

    def _holds(self, bound: Bound) -> bool:
        """Whether a bound is 0 or more, whatever its names stand for."""
        if bound is not None and self._causal:
            shared = max(min(bound.get("q", 0), -bound.get("k", 0)), 0)
            bound = {**bound, "q": bound.get("q", 0) - shared, "k": bound.get("k", 0) + shared}
        return bound is not None and all(
            factor >= 0 and (not name or name in self._natural or not factor) for name, factor in bound.items()
        )

    def least(self, syntax: Syntax) -> Bound:
        """A lower bound."""
        return self._bound(syntax, 1)

    def greatest(self, syntax: Syntax) -> Bound:
        """An upper bound."""
        return self._bound(syntax, -1)

    def _bound(self, syntax: Syntax, side: int) -> Bound:
        """The lower bound for side 1, the upper one for -1."""
        match syntax:
            case Literal(value=value):
                return {"": int(value)} if value == int(value if abs(value) < 2**31 else 0) else None
            case Name(id=name):
                return {name: 1}
            case Index(input=name) if side == 1 and name in self._natural:
                return ZERO
            case Operation(symbol=symbol, operands=(operand,)):
                return _sum(ZERO, self._bound(operand, -side), -1) if symbol == "-" else None
            case Operation():
                first, operations = leftmost(syntax)
                bound = self._bound(first, side)
                for operation in operations:
                    bound = self._of_operation(operation.symbol, bound, operation.operands[1], side)
                return bound
            case Call(function=function, arguments=arguments):
                return self._of_call(function, arguments, side)
        return None

    def _of_operation(self, symbol: str, left: Bound, right: Syntax, side: int) -> Bound:
        """The bound of a binary operation, from that of its left operand."""
        if symbol in ("+", "-"):
            factor = 1 if symbol == "+" else -1
            return _sum(left, self._bound(right, side * factor), factor)
        if side == 1 and symbol in ("*", "//", "%", "&", "|", ">>", "<<"):
            return ZERO if (symbol == "%" or self._holds(left)) and self.is_natural(right) else None
        return None

    def _of_call(self, function: str, arguments: tuple[Syntax, ...], side: int) -> Bound:
        if function == "clamp":
            x, low, high = arguments
            if side == 1 and self._below(low, high):
                least = self.least(low)
                return least if self._holds(least) or not all(map(self.is_natural, (x, high))) else ZERO
            return self._of_min((Call(x.at, "max", (x, low)), high), side)
        if function == "max":
            bounds = [self._bound(each, side) for each in arguments]
            if side == 1:
                natural = [bound for bound in bounds if self._holds(bound)]
                return (natural or [bound for bound in bounds if bound is not None] or [None])[-1]
            return None
        if function == "min":
            return self._of_min(arguments, side)
        if function == "where":
            return ZERO if side == 1 and all(map(self.is_natural, arguments[1:])) else None
        return ZERO if function == "abs" and side == 1 else None

    def _of_min(self, arguments: tuple[Syntax, ...], side: int) -> Bound:
        bounds = [self._bound(each, side) for each in arguments]
        if side == -1:
            return bounds[-1] if bounds[-1] is not None else bounds[0]
        return ZERO if all(map(self._holds, bounds)) else None

    def _below(self, x: Syntax, y: Syntax) -> bool:
        return self._holds(_sum(self.least(y), self.greatest(x), -1))


def _sum(x: Bound, y: Bound, factor: int) -> Bound:
    """x + factor * y."""
    if x is None or y is None:
        return None
    return {name: x.get(name, 0) + factor * y.get(name, 0) for name in {*x, *y}}
