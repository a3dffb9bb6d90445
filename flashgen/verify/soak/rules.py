"""The operators and functions of the language, each drawn with operands for which it is well posed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from flashgen.verify.soak.pieces import EXACT, INT32, Piece, number

if TYPE_CHECKING:
    from flashgen.verify.soak.wild import Wild

Rule = Callable[["Wild", int], "Piece | None"]


def interval(operator: str, x: Piece, y: Piece) -> tuple[float, float]:
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
    operator = wild.pick(["+", "-", "+", "-", "*"])
    low, high = interval(operator, x, y)
    return _joined(x, y, f"{x} {operator} {y}", "int", low, high)


def _int_division(wild: Wild, depth: int) -> Piece | None:
    x, y = wild.draw("int", depth), wild.draw("int", depth if wild.random.random() < 0.5 else 0)
    operator = wild.pick(["//", "%"])
    most = x.size if operator == "//" else y.size
    return _joined(x, y, f"{x} {operator} {y}", "int", -most - 1, most)


def _int_bits(wild: Wild, depth: int) -> Piece | None:
    x, y = wild.draw("int", depth), wild.draw("int", depth)
    operator = wild.pick(["&", "|", "^"])
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
    operator = wild.pick(["-", "~", "+"])
    low, high = (x.low, x.high) if operator == "+" else (-x.high - 1, -x.low)
    return Piece(f"{operator}{x}", "int", low, high)


def _int_power(wild: Wild, depth: int) -> Piece | None:
    x, power = wild.draw("int", depth), wild.random.randint(0, 4)
    most = x.size**power
    return Piece(f"{x} ** {power}", "int", -most, most) if most < INT32 else None


def _int_of_bools(wild: Wild, depth: int) -> Piece | None:
    x, y = wild.draw("bool", depth), wild.draw(wild.pick(["bool", "int"]), depth)
    operator = wild.pick(["+", "-"])
    low, high = interval(operator, x, y)
    return Piece(f"{x} {operator} {y}", "int", low, high)


def _floored(wild: Wild, depth: int) -> Piece | None:
    x = wild.exact(depth)
    if wild.random.random() < 0.4:
        return Piece(f"ceil({x.text})", "int", math.ceil(x.low), math.ceil(x.high), tight=True)
    return Piece(f"floor({x.text})", "int", math.floor(x.low), math.floor(x.high), tight=True)


def _of(kind: str) -> list[tuple[int, Rule]]:
    """Functions that a type has in common with the others."""

    def extremum(wild: Wild, depth: int) -> Piece | None:
        x, y = wild.draw(kind, depth), wild.draw(kind, depth)
        more = f", {wild.constant(kind if kind != 'exact' else 'float').text}" if wild.random.random() < 0.2 else ""
        name = wild.pick(["min", "max"])
        most = max(x.size, y.size, 300 if more else 0)
        text, type_ = f"{name}({x.text}, {y.text}{more})", _type(kind)
        return _joined(x, y, text, type_, -most, most, kind != "float")

    def clamped(wild: Wild, depth: int) -> Piece | None:
        x = wild.draw(kind, depth)
        low, high = sorted((wild.random.randint(-40, 40), wild.random.randint(-40, 200)))
        return Piece(f"clamp({x.text}, {low}, {high})", _type(kind), low, high, x.exact, x.smooth, tight=True)

    def absolute(wild: Wild, depth: int) -> Piece | None:
        x = wild.draw(kind, depth)
        if kind != "float" and wild.random.random() < 0.3:
            return Piece(f"sign({x.text})", _type(kind), -1, 1, x.exact, x.smooth, tight=True)
        return Piece(f"abs({x.text})", _type(kind), 0, x.size, x.exact, x.smooth, tight=True)

    def chosen(wild: Wild, depth: int) -> Piece | None:
        test, x, y = wild.masked().draw("bool", depth), wild.draw(kind, depth), wild.draw(kind, depth)
        form = wild.pick(["where({test.text}, {x.text}, {y.text})", "{x} if {test} else {y}"])
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
    operator = wild.pick(["+", "-"])
    low, high = interval(operator, x, y)
    return _joined(x, y, f"{x} {operator} {y}", "float", low, high) if max(abs(low), abs(high)) < EXACT else None


def _exact_division(wild: Wild, depth: int) -> Piece | None:
    """Of integers by a power of two, or rounded."""
    if wild.random.random() < 0.4:
        x = wild.draw("int", depth)
        return _joined(x, x, f"{x} / {wild.pick([1, 2, 4])}", "float", x.low, x.high) if x.size < EXACT else None
    x, half = wild.exact(depth), wild.pick(["2", "1.0", "0.5", "-4", "3"])
    operator = wild.pick(["//", "%"])
    most = 2 * x.size + 4
    return _joined(x, x, f"{x} {operator} ({half})", "float", -most, most) if most < EXACT else None


def _exact_product(wild: Wild, depth: int) -> Piece | None:
    x, factor = wild.exact(depth), wild.pick([2, -1, 3.0, -4])
    low, high = interval("*", x, number(factor))
    return _joined(x, x, f"{x} * ({factor})", "float", low, high) if max(abs(low), abs(high)) < EXACT else None


def _any_float(wild: Wild, depth: int) -> Piece | None:
    return wild.exact(depth)


def _sum(wild: Wild, depth: int) -> Piece | None:
    x, y = wild.draw("float", depth), wild.any_number(depth)
    x, y = (x, y) if wild.random.random() < 0.5 else (y, x)
    operator = wild.pick(["+", "-"])
    return _joined(x, y, f"{x} {operator} {y}", "float", *interval(operator, x, y), exact=False)


def _scaled(wild: Wild, depth: int) -> Piece | None:
    x, factor = wild.draw("float", depth), number(wild.pick([0.3, -1.7, 2, 0.01, -0.125, 5]))
    return _joined(x, factor, f"{x} * {factor}", "float", *interval("*", x, factor), exact=False)


def _product(wild: Wild, depth: int) -> Piece | None:
    x, y = wild.draw("float", depth), wild.any_number(depth)
    low, high = interval("*", x, y)
    return _joined(x, y, f"{x} * {y}", "float", low, high, exact=False) if max(-low, high) < 1e4 else None


def _quotient(wild: Wild, depth: int) -> Piece | None:
    x, y = wild.any_number(depth), wild.any_number(depth)
    below = wild.pick(["(abs({y}) + 1)", "({y} * {y} + 0.5)", "(2.5 + sigmoid({y}))"]).format(y=y)
    return _joined(x, y, f"{x} / {below}", "float", -2 * x.size, 2 * x.size, exact=False)


def _bounded(wild: Wild, depth: int) -> Piece | None:
    x = wild.any_number(depth)
    name = wild.pick(["tanh", "tanh", "sigmoid"])
    return Piece(f"{name}({x.text})", "float", -1, 1, False, x.smooth, tight=True)


def _steep(wild: Wild, depth: int) -> Piece | None:
    x = wild.any_number(depth)
    if x.high > 8:
        x = Piece(f"clamp({x.text}, -9, {wild.pick([4, 6])})", x.type, -9, 6, x.exact, x.smooth)
    name = wild.pick(["exp", "exp2"])
    return Piece(f"{name}({x.text})", "float", 0, math.exp(x.high), False, x.smooth, tight=True)


def _waving(wild: Wild, depth: int) -> Piece | None:
    x = wild.any_number(depth)
    if wild.random.random() < 0.2:
        return Piece(f"tan(clamp({x.text}, -1.25, 1.25))", "float", -4, 4, False, x.smooth, tight=True)
    x = Piece(f"clamp({x.text}, -30, 30)", x.type, -30, 30, x.exact, x.smooth) if x.size > 30 else x
    name = wild.pick(["sin", "cos", "erf"])
    return Piece(f"{name}({x.text})", "float", -1, 1, False, x.smooth, tight=True)


def _slow(wild: Wild, depth: int) -> Piece | None:
    x, name = wild.any_number(depth), wild.pick(["log", "log2", "sqrt", "log1p"])
    return Piece(f"{name}(abs({x.text}) + 1)", "float", 0, math.sqrt(x.size + 1) + 1, False, x.smooth, tight=True)


def _raised(wild: Wild, depth: int) -> Piece | None:
    x = wild.any_number(depth)
    kind = wild.random.randint(0, 2)
    if kind == 0:
        return Piece(f"(abs({x.text}) + 1.0) ** {wild.pick(['0.5', '(-1)', '(-2.0)'])}", "float", 0, x.size + 1, False,
                     x.smooth)  # fmt: skip
    if kind == 1:
        power = wild.pick(["1", "2", "2.0", "3"])
        return Piece(f"clamp({x.text}, -3, 3.0) ** {power}", "float", -27, 27, False, x.smooth)
    return Piece(f"2.0 ** clamp({x.text}, -6, 6)", "float", 0, 64, False, x.smooth)


def _negative(wild: Wild, depth: int) -> Piece | None:
    x = wild.draw("float", depth)
    return Piece(f"-{x}", "float", -x.high, -x.low, x.exact, x.smooth)


_COMPARE = ["<", "<=", ">", ">=", "==", "!="]


def _test_of_ints(wild: Wild, depth: int) -> Piece | None:
    wild = wild.masked()
    x, y = wild.draw("int", depth), wild.draw("int", depth)
    text = f"{x} {wild.pick(_COMPARE)} {y}"
    if wild.random.random() < 0.15:
        text += f" {wild.pick(_COMPARE)} {wild.draw('int', depth)}"
    return Piece(text, "bool")


def _test_beyond_32_bits(wild: Wild, depth: int) -> Piece | None:
    """Constants that 32 bits cannot hold beside integers that they can."""
    wild = wild.masked()
    x, y = wild.draw("int", depth), wild.draw("int", 0)
    constant = wild.pick(["2147483648", "(-2147483649)", "4294967296", "(-1099511627776)", "9223372036854775807"])
    forms = ["{x} {op} {c}", "{x} % {c} {op} {y}", "{x} // {c} {op} {y}", "{x} - 4294967296 {op} {y}", "{c} {op} {x}",
             "max({x}, {y}) {op} {c}", "({x} & {c}) {op} {y}"]  # fmt: skip
    return Piece(wild.pick(forms).format(x=x, y=y, c=constant, op=wild.pick(_COMPARE)), "bool")


def _test_of_floats(wild: Wild, depth: int) -> Piece | None:
    wild = wild.masked()
    return Piece(f"{wild.exact(depth)} {wild.pick(_COMPARE)} {wild.exact_number(depth)}", "bool")


def _test_of_tests(wild: Wild, depth: int) -> Piece | None:
    x, y = wild.draw("bool", depth), wild.draw("bool", depth)
    return Piece(f"{x} {wild.pick(['&', '|', '&', '|', '^', 'and', 'or', '==', '!='])} {y}", "bool")


def _negated(wild: Wild, depth: int) -> Piece | None:
    return Piece(f"{wild.pick(['not ', '~'])}{wild.draw('bool', depth)}", "bool")


def _bool_chosen(wild: Wild, depth: int) -> Piece | None:
    test, x, y = (wild.draw("bool", depth) for _ in range(3))
    return Piece(wild.pick([f"where({test.text}, {x.text}, {y.text})", f"{x} if {test} else {y}"]), "bool")


def _bool_element(wild: Wild, depth: int) -> Piece | None:
    return wild.element("bool", depth)


def _weighted(*rules: tuple[int, Rule]) -> list[Rule]:
    return [rule for weight, rule in rules for _ in range(weight)]


RULES: Mapping[str, list[Rule]] = {
    "bool": _weighted(
        (6, _test_of_ints), (1, _test_beyond_32_bits), (2, _test_of_floats), (4, _test_of_tests), (1, _negated),
        (1, _bool_chosen), (3, _bool_element),
    ),
    "int": _weighted(
        (6, _int_arithmetic), (5, _int_division), (2, _int_bits), (2, _int_shift), (2, _int_sign), (1, _int_power),
        (1, _int_of_bools), (1, _floored), *_of("int"),
    ),
    "exact": _weighted((4, _exact_arithmetic), (3, _exact_division), (2, _exact_product), *_of("exact")),
    "float": _weighted(
        (2, _any_float), (5, _sum), (3, _scaled), (4, _product), (2, _quotient), (4, _bounded), (2, _steep),
        (2, _slow), (2, _raised), (1, _negative), (3, _waving), *_of("float"),
    ),
}  # fmt: skip
