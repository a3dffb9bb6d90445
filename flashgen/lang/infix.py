"""Text with as few parentheses as Python's precedence allows, for every writer of expressions."""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.lang.parse import BINDING, COMPARISONS, PREFIX_BINDING

ATOM = 13
CONDITIONAL = 0


@dataclass(frozen=True)
class Text:
    """A piece of an expression and how tightly its outermost operator binds; names, numbers and calls are atoms."""

    text: str
    binding: int = ATOM

    def __str__(self) -> str:
        return self.text

    def within(self, binding: int) -> str:
        """The text where only operators that bind at least so tightly may stand bare."""
        return self.text if self.binding >= binding else f"({self.text})"


def number(value: bool | int | float) -> Text:
    """A literal; one with a sign binds like the sign."""
    text = repr(value)
    return Text(text, PREFIX_BINDING["-"]) if text.startswith("-") else Text(text)


def binary(symbol: str, left: Text, right: Text) -> Text:
    binding = BINDING[symbol]
    if symbol == "**":
        return Text(f"{left.within(ATOM)} ** {right.within(PREFIX_BINDING['-'])}", binding)
    # Comparisons on the left of one another would chain.
    first = left.within(binding + 1 if symbol in COMPARISONS else binding)
    return Text(f"{first} {symbol} {right.within(binding + 1)}", binding)


def prefix(symbol: str, operand: Text) -> Text:
    binding = PREFIX_BINDING[symbol]
    space = " " if symbol.isalpha() else ""
    return Text(f"{symbol}{space}{operand.within(binding)}", binding)


def call(function: str, *arguments: Text | str) -> Text:
    return Text(f"{function}({', '.join(map(str, arguments))})")


def method(operand: Text, name: str, *arguments: Text | str) -> Text:
    return call(f"{operand.within(ATOM)}.{name}", *arguments)


def conditional(test: Text, then: Text, otherwise: Text) -> Text:
    return Text(f"{then.within(1)} if {test.within(1)} else {otherwise}", CONDITIONAL)
