"""Text with as few parentheses as Python's precedence allows, for every writer of expressions."""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.lang.parse import BINDING, COMPARISONS, PREFIX_BINDING

ATOM = 13
CONDITIONAL = 0


@dataclass(frozen=True)
class Text:
    """A piece of an expression and how tightly its outermost operator binds; names, numbers and calls are atoms.

    `reads` has the names in it, as far as its writer says which these are, by `read`.
    """

    text: str
    binding: int = ATOM
    reads: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return self.text

    def within(self, binding: int) -> str:
        """The text where only operators that bind at least so tightly may stand bare."""
        return self.text if self.binding >= binding else f"({self.text})"


def read(name: str) -> Text:
    """A name, or an attribute of what it names, such as torch.where."""
    return Text(name, reads=frozenset({name.partition(".")[0]}))


def number(value: bool | int | float) -> Text:
    """A literal; one with a sign binds like the sign."""
    text = repr(value)
    return Text(text, PREFIX_BINDING["-"]) if text.startswith("-") else Text(text)


def binary(symbol: str, left: Text, right: Text) -> Text:
    binding = BINDING[symbol]
    if symbol == "**":
        return Text(f"{left.within(ATOM)} ** {right.within(PREFIX_BINDING['-'])}", binding, _reads(left, right))
    # Comparisons on the left of one another would chain.
    first = left.within(binding + 1 if symbol in COMPARISONS else binding)
    return Text(f"{first} {symbol} {right.within(binding + 1)}", binding, _reads(left, right))


def prefix(symbol: str, operand: Text) -> Text:
    binding = PREFIX_BINDING[symbol]
    space = " " if symbol.isalpha() else ""
    return Text(f"{symbol}{space}{operand.within(binding)}", binding, operand.reads)


def call(function: Text | str, *arguments: Text | str) -> Text:
    return Text(f"{function}({', '.join(map(str, arguments))})", reads=_reads(function, *arguments))


def method(operand: Text, name: str, *arguments: Text | str) -> Text:
    return call(Text(f"{operand.within(ATOM)}.{name}", reads=operand.reads), *arguments)


def keyword(name: str, value: Text) -> Text:
    return Text(f"{name}={value}", reads=value.reads)


def element(tensor: Text, *indices: Text) -> Text:
    return Text(f"{tensor}[{', '.join(map(str, indices))}]", reads=_reads(tensor, *indices))


def conditional(test: Text, then: Text, otherwise: Text) -> Text:
    text = f"{then.within(1)} if {test.within(1)} else {otherwise}"
    return Text(text, CONDITIONAL, _reads(test, then, otherwise))


def _reads(*parts: Text | str) -> frozenset[str]:
    return frozenset().union(*(part.reads for part in parts if isinstance(part, Text)))
