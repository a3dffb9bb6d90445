"""The parser: Python's grammar and precedence for the operators of the language, by precedence climbing.

Nothing is ever evaluated. Nesting and size are bounded, so that hostile text gets an error and not a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from keyword import iskeyword

from flashgen.errors import ExpressionError, Location
from flashgen.lang.syntax import Call, Chain, Conditional, Index, Literal, Name, Operation, Syntax
from flashgen.lang.tokens import Token, Where, tokenize, within
from flashgen.lang.vocabulary import python_keyword

MAX_HEIGHT = 64

COMPARISONS = frozenset({"<", "<=", ">", ">=", "==", "!="})
# How tightly each binary operator binds; all but ** group to the left.
BINDING = {
    "or": 1, "and": 2,
    "|": 5, "^": 6, "&": 7, "<<": 8, ">>": 8,
    "+": 9, "-": 9, "*": 10, "/": 10, "//": 10, "%": 10, "**": 12,
} | dict.fromkeys(COMPARISONS, 4)  # fmt: skip
# Prefix operators: what they bind at decides what they may stand before and how far their operand reaches.
PREFIX_BINDING = {"not": 3, "+": 11, "-": 11, "~": 11}


def parse(text: str, at: Location | Where) -> Syntax:
    """The syntax of an expression.

    `at` is where the text starts in its file, or says where each of its characters stands.
    Raises ExpressionError at the place of the first fault.
    """
    where = within(text, at) if isinstance(at, Location) else at
    parser = _Parser(tokenize(text, where))
    if parser.token.kind == "end":
        raise ExpressionError(where(0), "an empty expression", "a formula such as 'k <= q'")
    syntax = parser.conditional()
    if parser.token.kind != "end":
        raise parser.unexpected("an operator or the end of the expression")
    return syntax


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0

    @property
    def token(self) -> Token:
        return self._tokens[self._position]

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        """One level of recursion, of which there may be only so many."""
        self._depth += 1
        if self._depth > MAX_HEIGHT:
            raise _too_deep(self.token.at)
        yield
        self._depth -= 1

    def conditional(self) -> Syntax:
        """`operation [if operation else conditional]`: a whole expression."""
        then = self._operation(0)
        if self.token.text != "if":
            return then
        at = self._take("if").at
        test = self._operation(0)
        self._take("else", "'else': a conditional is 'a if test else b'")
        with self._deeper():
            otherwise = self.conditional()
        return _bounded(Conditional(at, test, then, otherwise), _over(test, then, otherwise))

    def _operation(self, floor: int) -> Syntax:
        """Operators that bind tighter than `floor`, and their operands."""
        with self._deeper():
            left = self._prefixed(floor)
            while (binding := BINDING.get(self.token.text, 0)) > floor:
                if self.token.text in COMPARISONS:
                    left = self._chain(left)
                    continue
                operator = self._next()
                # ** groups to the right, and its right side may carry a sign: 2 ** -x ** 2.
                right = self._operation(binding if operator.text != "**" else PREFIX_BINDING["-"])
                # A sum of many terms is long and not deep: its height is that of its tallest.
                height = max(left.height, 1 + right.height)
                left = _bounded(Operation(operator.at, operator.text, (left, right)), height)
            return left

    def _chain(self, first: Syntax) -> Syntax:
        symbols, operands = [], [first]
        at = self.token.at
        while self.token.text in COMPARISONS:
            symbols.append(self._next().text)
            operands.append(self._operation(BINDING["<"]))
        return _bounded(Chain(at, tuple(symbols), tuple(operands)), _over(*operands))

    def _prefixed(self, floor: int) -> Syntax:
        """An operand, with the prefix operators before it."""
        token = self.token
        if token.kind != "symbol" or token.text not in PREFIX_BINDING:
            return self._operand()
        binding = PREFIX_BINDING[token.text]
        if token.text == "not" and floor > binding:
            raise self.unexpected("parentheses around 'not ...' here, as in Python")
        self._next()
        # ** binds tighter than a sign before it: -x ** 2 is -(x ** 2).
        operand = self._operation(binding)
        return _bounded(Operation(token.at, token.text, (operand,)), _over(operand))

    def _operand(self) -> Syntax:
        token = self.token
        if token.kind == "number" and token.value is not None:
            self._next()
            return Literal(token.at, token.value)
        if token.kind == "name":
            return self._named(self._next())
        if token.text == "(":
            self._next()
            inner = self.conditional()
            self._close(")", token)
            return replace(inner, bracketed=True)
        magnitude = "; a magnitude is 'abs(...)'" if token.text == "|" else ""
        raise self.unexpected(f"a number, a name or '('{magnitude}")

    def _named(self, name: Token) -> Syntax:
        opening = self.token
        if opening.text == "(":
            arguments = self._sequence(")")
            return _bounded(Call(name.at, name.text, arguments), _over(*arguments))
        if opening.text == "[":
            indices = self._sequence("]")
            if not indices:
                raise ExpressionError(opening.at, f"'{name.text}[]'", "one integer index per dimension")
            if self.token.text == "[":
                raise self.unexpected(f"all indices in one bracket, as in '{name.text}[i, j]'")
            return _bounded(Index(name.at, name.text, indices), _over(*indices))
        return Name(name.at, name.text)

    def _sequence(self, closing: str) -> tuple[Syntax, ...]:
        """Expressions between brackets, with commas; a trailing comma is allowed."""
        opening = self._next()
        items: list[Syntax] = []
        while self.token.text != closing:
            items.append(self.conditional())
            if self.token.text != ",":
                break
            self._next()
        self._close(closing, opening)
        return tuple(items)

    def _close(self, closing: str, opening: Token) -> None:
        at = opening.at
        self._take(closing, f"an operator or '{closing}' to close the '{opening.text}' at {at.line}:{at.column}")

    def _next(self) -> Token:
        token = self.token
        self._position += 1
        return token

    def _take(self, text: str, expected: str = "") -> Token:
        if self.token.text != text:
            raise self.unexpected(expected)
        return self._next()

    def unexpected(self, expected: str) -> ExpressionError:
        """The error for the token at hand. A keyword of Python is a name like others, and seldom meant as one here."""
        token, before = self.token, self._tokens[self._position - 1]
        if token.fault:
            return token.fault
        if token.kind == "name" and iskeyword(token.text):
            return ExpressionError(token.at, *python_keyword(token.text))
        after = f" after the Python keyword {before}" if before.kind == "name" and iskeyword(before.text) else ""
        return ExpressionError(token.at, f"unexpected {token}{after}", expected)


def _over(*parts: Syntax) -> int:
    """The height of what stands on these parts."""
    return 1 + max((part.height for part in parts), default=0)


def _bounded(node: Syntax, height: int) -> Syntax:
    if height > MAX_HEIGHT:
        raise _too_deep(node.at)
    return replace(node, height=height)


def _too_deep(at: Location) -> ExpressionError:
    return ExpressionError(at, f"an expression nested more than {MAX_HEIGHT} deep", "parts named with 'let'")
