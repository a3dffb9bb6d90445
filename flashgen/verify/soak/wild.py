"""Random well-typed expressions as texts, with bounds of what they may come to.

The bounds keep a draw well posed:
- integers stay within 32 bits;
- what jumps (comparisons, floor, // and % of floats) reads floats that every precision holds exactly, never `score`;
- functions are used inside their domains, and exp where it is finite.
Indices may leave their tensors, divisors may be 0 and shift counts negative: the language says what that gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

INT32 = 2**31 - 1
# Exact floats are multiples of a quarter of at most this size.
EXACT = 2.0**14


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

    def without_score(self) -> Scope:
        """The same for masks and indices."""
        return Scope([piece for piece in self.scalars if not piece.smooth], self.tensors, self.used)


class Wild:
    """Draws expressions from a scope."""

    def __init__(self, random: Random, scope: Scope, smooth: bool) -> None:
        self.random, self.scope, self.smooth = random, scope, smooth

    def draw(self, kind: str, depth: int) -> Piece:
        if depth <= 0 or self.random.random() < 0.12:
            return self._leaf(kind)
        for _ in range(8):
            rule = self._pick(_RULES[kind])
            found = rule(self, depth - 1)
            if found is not None and found.size <= (INT32 if kind != "float" else 1e5) and len(found.text) < 400:
                return found
        return self._leaf(kind)

    def exact(self, depth: int) -> Piece:
        """A float that is exact."""
        found = self.draw("exact", depth)
        assert found.exact
        return found

    def element(self, kind: str, depth: int) -> Piece | None:
        """An element of an input, at any index."""
        tensors = [t for t in self.scope.tensors if t.type == kind and (self.smooth or not t.smooth)]
        if not tensors:
            return None
        tensor = self._pick(tensors)
        indices = [self._index(extent, depth) for extent in tensor.extents]
        self.scope.used.add(tensor.name)
        text = f"{tensor.name}[{', '.join(piece.text for piece in indices)}]"
        return Piece(text, kind, tensor.low, tensor.high, tensor.exact, tensor.smooth, tight=True)

    def _index(self, extent: int, depth: int) -> Piece:
        """An index of an axis: a position that belongs there, something near it, or anything."""
        ints = [s for s in self.scope.scalars if s.type == "int"]
        fitting = [s for s in ints if s.low >= 0 and s.high < extent and s.high > s.low]
        roll = self.random.random()
        if fitting and roll < 0.5:
            return self._named(self._pick(fitting))
        if roll < 0.8:
            inner = self._masked().draw("int", min(depth - 1, 1))
            if self.random.random() < 0.5:
                return Piece(f"clamp({inner.text}, 0, {extent - 1})", "int", 0, extent - 1)
            return Piece(f"{inner} % {extent}", "int", 0, extent - 1)
        return self._masked().draw("int", min(depth - 1, 1))

    def _masked(self) -> Wild:
        """The same without what has a gradient: for indices and tests."""
        return Wild(self.random, self.scope, False)

    def _leaf(self, kind: str) -> Piece:
        kind = "float" if (wants_exact := kind == "exact") else kind
        if self.random.random() < 0.35:
            found = self.element(kind, 0 if self.random.random() < 0.7 else 1)
            if found is not None and (found.exact or not wants_exact):
                return found
        fitting = [s for s in self.scope.scalars if s.type == kind and (self.smooth or not s.smooth)]
        fitting = [s for s in fitting if s.exact or not wants_exact]
        if fitting and self.random.random() < 0.8:
            return self._named(self._pick(fitting))
        return self._constant(kind)

    def _named(self, piece: Piece) -> Piece:
        self.scope.used.add(piece.text)
        return piece

    def _constant(self, kind: str) -> Piece:
        if kind == "bool":
            value: bool | int | float = self.random.random() < 0.5
            return Piece(self._pick(["True", "true"] if value else ["False", "false"]), "bool", tight=True)
        if kind == "int":
            value = self._pick([0, 1, 2, 3, 7, 16, 31, 64, 100, 255, 1000, -1, -2, -5, self.random.randint(-300, 300)])
            return number(value)
        return number(self._pick([0.0, 0.25, 0.5, 1.0, 1.5, 2.0, -0.5, -3.0, self.random.randint(-80, 80) / 4]))

    def _pick(self, items: Sequence[Any]) -> Any:
        return self.random.choice(items)

    def any_number(self, depth: int) -> Piece:
        return self.draw(self._pick(["int", "float"]), depth)

    def exact_number(self, depth: int) -> Piece:
        return self.draw(self._pick(["int", "exact"]), depth)


def number(value: int | float) -> Piece:
    """A literal, in parentheses where it has a sign."""
    kind = "int" if isinstance(value, int) else "float"
    return Piece(repr(value), kind, value, value, _is_exact(value), tight=value >= 0)


def _is_exact(value: float) -> bool:
    return abs(value) <= EXACT and float(4 * value).is_integer()


Rule = Callable[[Wild, int], "Piece | None"]


def _interval(operator: str, x: Piece, y: Piece) -> tuple[float, float]:
    ends = {
        "+": [x.low + y.low, x.high + y.high],
        "-": [x.low - y.high, x.high - y.low],
        "*": [a * b for a in (x.low, x.high) for b in (y.low, y.high)],
    }[operator]
    return min(ends), max(ends)


def _joined(x: Piece, y: Piece, text: str, kind: str, low: float, high: float, exact: bool = True) -> Piece:
    return Piece(text, kind, low, high, exact and x.exact and y.exact, x.smooth or y.smooth)


def _int_arithmetic(wild: Wild, depth: int) -> Piece | None:
    x, y = wild.draw("int", depth), wild.draw("int", depth)
    operator = wild._pick(["+", "-", "+", "-", "*"])
    low, high = _interval(operator, x, y)
    return _joined(x, y, f"{x} {operator} {y}", "int", low, high)


def _int_division(wild: Wild, depth: int) -> Piece | None:
    x, y = wild.draw("int", depth), wild.draw("int", depth if wild.random.random() < 0.5 else 0)
    operator = wild._pick(["//", "%"])
    most = x.size if operator == "//" else y.size
    return _joined(x, y, f"{x} {operator} {y}", "int", -most - 1, most)


def _int_bits(wild: Wild, depth: int) -> Piece | None:
    x, y = wild.draw("int", depth), wild.draw("int", depth)
    operator = wild._pick(["&", "|", "^"])
    most = 2.0 ** math.ceil(math.log2(max(x.size, y.size) + 1))
    return _joined(x, y, f"{x} {operator} {y}", "int", -most, most)


def _int_shift(wild: Wild, depth: int) -> Piece | None:
    x, y = wild.draw("int", depth), wild.draw("int", depth)
    if wild.random.random() < 0.5:
        return _joined(x, y, f"{x} >> {y}", "int", min(x.low, -1), max(x.high, 0))
    x = Piece(f"clamp({x.text}, -99, 99)", "int", -99, 99, tight=True)
    return _joined(x, y, f"{x} << ({y} & 7)", "int", -99 * 128, 99 * 128)


def _int_sign(wild: Wild, depth: int) -> Piece | None:
    x = wild.draw("int", depth)
    operator = wild._pick(["-", "~", "+"])
    low, high = (x.low, x.high) if operator == "+" else (-x.high - 1, -x.low)
    return Piece(f"{operator}{x}", "int", low, high)


def _int_power(wild: Wild, depth: int) -> Piece | None:
    x, power = wild.draw("int", depth), wild.random.randint(0, 4)
    most = x.size**power
    return Piece(f"{x} ** {power}", "int", -most, most) if most < INT32 else None


def _int_of_bools(wild: Wild, depth: int) -> Piece | None:
    x, y = wild.draw("bool", depth), wild.draw(wild._pick(["bool", "int"]), depth)
    operator = wild._pick(["+", "-"])
    low, high = _interval(operator, x, y)
    return Piece(f"{x} {operator} {y}", "int", low, high)


def _floored(wild: Wild, depth: int) -> Piece | None:
    x = wild.exact(depth)
    return Piece(f"floor({x.text})", "int", math.floor(x.low), math.floor(x.high), tight=True)


def _of(kind: str) -> list[tuple[int, Rule]]:
    """Functions that a type has in common with the others."""

    def extremum(wild: Wild, depth: int) -> Piece | None:
        x, y = wild.draw(kind, depth), wild.draw(kind, depth)
        more = f", {wild._constant(kind if kind != 'exact' else 'float').text}" if wild.random.random() < 0.2 else ""
        name = wild._pick(["min", "max"])
        most = max(x.size, y.size, 300 if more else 0)
        text, type_ = f"{name}({x.text}, {y.text}{more})", _type(kind)
        return _joined(x, y, text, type_, -most, most, kind != "float")

    def clamped(wild: Wild, depth: int) -> Piece | None:
        x = wild.draw(kind, depth)
        low, high = sorted((wild.random.randint(-40, 40), wild.random.randint(-40, 200)))
        return Piece(f"clamp({x.text}, {low}, {high})", _type(kind), low, high, x.exact, x.smooth, tight=True)

    def absolute(wild: Wild, depth: int) -> Piece | None:
        x = wild.draw(kind, depth)
        return Piece(f"abs({x.text})", _type(kind), 0, x.size, x.exact, x.smooth, tight=True)

    def chosen(wild: Wild, depth: int) -> Piece | None:
        test, x, y = wild._masked().draw("bool", depth), wild.draw(kind, depth), wild.draw(kind, depth)
        form = wild._pick(["where({test.text}, {x.text}, {y.text})", "{x} if {test} else {y}"])
        low, high = min(x.low, y.low), max(x.high, y.high)
        return _joined(x, y, form.format(test=test, x=x, y=y), _type(kind), low, high)

    def element(wild: Wild, depth: int) -> Piece | None:
        found = wild.element(_type(kind), depth)
        return found if found is None or found.exact or kind != "exact" else None

    return [(2, extremum), (2, clamped), (2, absolute), (2, chosen), (3, element)]


def _type(kind: str) -> str:
    return "float" if kind == "exact" else kind


def _exact_arithmetic(wild: Wild, depth: int) -> Piece | None:
    x, y = wild.exact(depth), wild.exact_number(depth)
    operator = wild._pick(["+", "-"])
    low, high = _interval(operator, x, y)
    return _joined(x, y, f"{x} {operator} {y}", "float", low, high) if max(abs(low), abs(high)) < EXACT else None


def _exact_division(wild: Wild, depth: int) -> Piece | None:
    """Of integers by a power of two, or rounded."""
    if wild.random.random() < 0.4:
        x = wild.draw("int", depth)
        return _joined(x, x, f"{x} / {wild._pick([1, 2, 4])}", "float", x.low, x.high) if x.size < EXACT else None
    x, half = wild.exact(depth), wild._pick(["2", "1.0", "0.5", "-4", "3"])
    operator = wild._pick(["//", "%"])
    most = 2 * x.size + 4
    return _joined(x, x, f"{x} {operator} ({half})", "float", -most, most) if most < EXACT else None


def _exact_product(wild: Wild, depth: int) -> Piece | None:
    x, factor = wild.exact(depth), wild._pick([2, -1, 3.0, -4])
    low, high = _interval("*", x, number(factor))
    return _joined(x, x, f"{x} * ({factor})", "float", low, high) if max(abs(low), abs(high)) < EXACT else None


def _any_float(wild: Wild, depth: int) -> Piece | None:
    return wild.exact(depth)


def _sum(wild: Wild, depth: int) -> Piece | None:
    x, y = wild.draw("float", depth), wild.any_number(depth)
    x, y = (x, y) if wild.random.random() < 0.5 else (y, x)
    operator = wild._pick(["+", "-"])
    return _joined(x, y, f"{x} {operator} {y}", "float", *_interval(operator, x, y), exact=False)


def _scaled(wild: Wild, depth: int) -> Piece | None:
    x, factor = wild.draw("float", depth), number(wild._pick([0.3, -1.7, 2, 0.01, -0.125, 5]))
    return _joined(x, factor, f"{x} * {factor}", "float", *_interval("*", x, factor), exact=False)


def _product(wild: Wild, depth: int) -> Piece | None:
    x, y = wild.draw("float", depth), wild.any_number(depth)
    low, high = _interval("*", x, y)
    return _joined(x, y, f"{x} * {y}", "float", low, high, exact=False) if max(-low, high) < 1e4 else None


def _quotient(wild: Wild, depth: int) -> Piece | None:
    x, y = wild.any_number(depth), wild.any_number(depth)
    below = wild._pick(["(abs({y}) + 1)", "({y} * {y} + 0.5)", "(2.5 + sigmoid({y}))"]).format(y=y)
    return _joined(x, y, f"{x} / {below}", "float", -2 * x.size, 2 * x.size, exact=False)


def _bounded(wild: Wild, depth: int) -> Piece | None:
    x = wild.any_number(depth)
    name = wild._pick(["tanh", "tanh", "sigmoid"])
    return Piece(f"{name}({x.text})", "float", -1, 1, False, x.smooth, tight=True)


def _steep(wild: Wild, depth: int) -> Piece | None:
    x = wild.any_number(depth)
    if x.high > 8:
        x = Piece(f"clamp({x.text}, -9, {wild._pick([4, 6])})", x.type, -9, 6, x.exact, x.smooth)
    name = wild._pick(["exp", "exp2"])
    return Piece(f"{name}({x.text})", "float", 0, math.exp(x.high), False, x.smooth, tight=True)


def _slow(wild: Wild, depth: int) -> Piece | None:
    x, name = wild.any_number(depth), wild._pick(["log", "log2", "sqrt"])
    return Piece(f"{name}(abs({x.text}) + 1)", "float", 0, math.sqrt(x.size + 1) + 1, False, x.smooth, tight=True)


def _raised(wild: Wild, depth: int) -> Piece | None:
    x = wild.any_number(depth)
    kind = wild.random.randint(0, 2)
    if kind == 0:
        return Piece(f"(abs({x.text}) + 1.0) ** {wild._pick(['0.5', '(-1)', '(-2.0)'])}", "float", 0, x.size + 1, False,
                     x.smooth)  # fmt: skip
    if kind == 1:
        power = wild._pick(["1", "2", "2.0", "3"])
        return Piece(f"clamp({x.text}, -3, 3.0) ** {power}", "float", -27, 27, False, x.smooth)
    return Piece(f"2.0 ** clamp({x.text}, -6, 6)", "float", 0, 64, False, x.smooth)


def _negative(wild: Wild, depth: int) -> Piece | None:
    x = wild.draw("float", depth)
    return Piece(f"-{x}", "float", -x.high, -x.low, x.exact, x.smooth)


_COMPARE = ["<", "<=", ">", ">=", "==", "!="]


def _test_of_ints(wild: Wild, depth: int) -> Piece | None:
    wild = wild._masked()
    x, y = wild.draw("int", depth), wild.draw("int", depth)
    text = f"{x} {wild._pick(_COMPARE)} {y}"
    if wild.random.random() < 0.15:
        text += f" {wild._pick(_COMPARE)} {wild.draw('int', depth)}"
    return Piece(text, "bool")


def _test_of_floats(wild: Wild, depth: int) -> Piece | None:
    wild = wild._masked()
    return Piece(f"{wild.exact(depth)} {wild._pick(_COMPARE)} {wild.exact_number(depth)}", "bool")


def _test_of_tests(wild: Wild, depth: int) -> Piece | None:
    x, y = wild.draw("bool", depth), wild.draw("bool", depth)
    return Piece(f"{x} {wild._pick(['&', '|', '&', '|', '^', 'and', 'or', '==', '!='])} {y}", "bool")


def _negated(wild: Wild, depth: int) -> Piece | None:
    return Piece(f"{wild._pick(['not ', '~'])}{wild.draw('bool', depth)}", "bool")


def _bool_chosen(wild: Wild, depth: int) -> Piece | None:
    test, x, y = (wild.draw("bool", depth) for _ in range(3))
    return Piece(wild._pick([f"where({test.text}, {x.text}, {y.text})", f"{x} if {test} else {y}"]), "bool")


def _bool_element(wild: Wild, depth: int) -> Piece | None:
    return wild.element("bool", depth)


def _weighted(*rules: tuple[int, Rule]) -> list[Rule]:
    return [rule for weight, rule in rules for _ in range(weight)]


_RULES: Mapping[str, list[Rule]] = {
    "bool": _weighted(
        (6, _test_of_ints), (2, _test_of_floats), (4, _test_of_tests), (1, _negated), (1, _bool_chosen),
        (3, _bool_element),
    ),
    "int": _weighted(
        (6, _int_arithmetic), (5, _int_division), (2, _int_bits), (2, _int_shift), (2, _int_sign), (1, _int_power),
        (1, _int_of_bools), (1, _floored), *_of("int"),
    ),
    "exact": _weighted((4, _exact_arithmetic), (3, _exact_division), (2, _exact_product), *_of("exact")),
    "float": _weighted(
        (2, _any_float), (5, _sum), (3, _scaled), (4, _product), (2, _quotient), (4, _bounded), (2, _steep),
        (2, _slow), (2, _raised), (1, _negative), *_of("float"),
    ),
}  # fmt: skip
