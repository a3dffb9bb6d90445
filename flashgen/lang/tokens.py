"""From the text of an expression to tokens that know their line and column."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from flashgen.errors import ExpressionError, Location
from flashgen.lang.vocabulary import LITERALS, WORD_OPERATORS, expected_attribute

# The place of the character at an index of a text, or at its end.
Where: TypeAlias = Callable[[int], Location]

INT_MAX = 2**63 - 1
# The only number beyond 64 bits that its minus, which is an operator before it, brings back.
LEAST_WITHOUT_SIGN = 2**63
MAX_TOKENS = 4_000
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+ | \#[^\r\n]*)
      | (?P<number>(?:[0-9][0-9_]*\.?[0-9_]* | \.[0-9][0-9_]*)(?:[eE][+-]?[0-9]+)?[A-Za-z0-9_.]*)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<symbol>\*\*|//|<<|>>|<=|>=|==|!=|[-+*/%<>&|^~()\[\],])""",
    re.VERBOSE,
)
# What people write out of habit from other languages, and what this one has for it.
_HABITS = {
    "&&": "'&' between tests in parentheses",
    "||": "'|' between tests in parentheses",
    "=>": "'>='",
    "=<": "'<='",
    ">==": "'>='",
    "<==": "'<='",
    "<>": "'!='",
    "=!": "'!='",
    "~=": "'!='",
    "/=": "'!=' to compare, '/' to divide; nothing is assigned",
    "!==": "'!='",
    "===": "'=='",
    ">>>": "'>>'",
    ":=": "a name under 'let'; nothing is assigned",
    "=": "'==' to compare; arguments have no names but their order, and parts get names under 'let'",
    "!": "'not' or '~' to negate, '!=' to compare",
    ":": "one integer index per dimension; there are no slices",
    ".": "a plain name or number; there are no attributes",
    "@": "'*' to multiply numbers",
    "{": "parentheses '(...)'",
    "?": "'a if test else b'",
    "≤": "'<='",
    "≥": "'>='",
    "≠": "'!='",
    "⩽": "'<='",
    "⩾": "'>='",
    "≡": "'=='",
    **dict.fromkeys("×·⋅∗", "'*'"),
    **dict.fromkeys("÷∕⁄", "'/'"),
    **dict.fromkeys("−–—", "'-'"),
    "∧": "'&'",
    "∨": "'|'",
    "⊕": "'^'",
    "⊻": "'^'",
    "¬": "'not' or '~'",
    "²": "'** 2'",
    "³": "'** 3'",
    "√": "'sqrt(...)'",
    "∞": "'inf'",
    "π": "'3.141592653589793'",
    "∑": "'sum(i, n, term)'",
    "∃": "'any(i, n, test)'",
    "∀": "'all(i, n, test)'",
    **dict.fromkeys("⌊⌋", "'floor(...)'"),
    **dict.fromkeys("⌈⌉", "'ceil(...)'"),
    **dict.fromkeys("'\"‘’“”", "a number, 'inf' or a name; there are no strings"),
}
# Those that begin with a sign that is one of ours too; of several that begin alike the longest counts.
_LONG_HABIT = re.compile("|".join(re.escape(sign) for sign in sorted(_HABITS, key=len)[::-1] if len(sign) > 1))
# An operator that assigns what it computes, such as += and and=.
_ASSIGNED = re.compile(r"(\*\*|//|<<|>>|[-+*%&|^]|and\b|or\b)=(?!=)")


@dataclass(frozen=True)
class Token:
    """`kind` is "number", "name", "symbol" (word operators too), "end" or "fault"; `value` is a number's value.

    At a `fault` there is no token: what comes before it may be wrong too, and is told first.
    """

    kind: str
    text: str
    at: Location
    value: bool | int | float | None = None
    fault: ExpressionError | None = None

    def __str__(self) -> str:
        return "end of the expression" if self.kind == "end" else f"'{self.text}'"


def within(text: str, at: Location) -> Where:
    """Where the characters of a text stand whose first one stands there; other lines begin at the first column."""

    def where(index: int) -> Location:
        lines = text[:index].split("\n")
        column = len(lines[-1]) + (1 if len(lines) > 1 else at.column or 1)
        return Location(at.file, (at.line or 1) + len(lines) - 1, column)

    return where


def tokenize(text: str, where: Where) -> list[Token]:
    """The tokens of `text`, closed by one of kind "end" or "fault"."""
    tokens: list[Token] = []
    for token in _scan(text, where):
        tokens.append(token)
        if len(tokens) > MAX_TOKENS:
            raise ExpressionError(token.at, f"an expression of more than {MAX_TOKENS} tokens", "parts named with 'let'")
    return tokens


def _scan(text: str, where: Where) -> Iterator[Token]:
    position = 0
    before: Token | None = None
    while position < len(text):
        here = where(position)
        match = _TOKEN.match(text, position)
        fault = _habit(text, position, here)
        if fault is None and match is None:
            fault = _attribute(text, position, before) or _stray(text[position], here)
        if fault or not match:
            yield Token("fault", "", here, fault=fault)
            return
        if match.lastgroup != "space":
            before = _token(match.lastgroup or "", match.group(), here)
            yield before
        position = match.end()
    yield Token("end", "", where(position))


def _attribute(text: str, position: int, owner: Token | None) -> ExpressionError | None:
    """The error for `torch.where` or `score.abs`, where what stands at `position` begins the attribute of a name."""
    found = re.compile(r"(?:\s*\.\s*[A-Za-z_][A-Za-z0-9_]*)+").match(text, position)
    if found is None or owner is None or owner.kind != "name":
        return None
    path = [owner.text, *re.findall(r"\w+", found.group())]
    return ExpressionError(owner.at, f"'{'.'.join(path)}'", expected_attribute(path))


def _habit(text: str, position: int, at: Location) -> ExpressionError | None:
    """The error for a longer sign of other languages at `position`, before what it begins with is taken for ours."""
    if match := _ASSIGNED.match(text, position):
        return ExpressionError(at, f"unexpected '{match.group()}'", f"'{match.group(1)}'; nothing is assigned")
    match = _LONG_HABIT.match(text, position)
    return match and ExpressionError(at, f"unexpected '{match.group()}'", _HABITS[match.group()])


def _stray(character: str, at: Location) -> ExpressionError:
    shown = f"'{character}'" if character.isprintable() else f"character U+{ord(character):04X}"
    usual = "a name of letters from a to z" if character.isalpha() else "a number, a name, an operator or a bracket"
    expected = _HABITS.get(character, usual)
    return ExpressionError(at, f"unexpected {shown}", expected)


def _token(kind: str, text: str, at: Location) -> Token:
    if kind == "number":
        return Token("number", text, at, _number(text, at))
    if kind == "name":
        if text in LITERALS:
            return Token("number", text, at, LITERALS[text])
        if text in WORD_OPERATORS:
            return Token("symbol", text, at)
    return Token(kind, text, at)


def _number(text: str, at: Location) -> int | float:
    try:
        value: int | float = _integer_or_float(text)
    except ValueError as error:
        raise ExpressionError(at, f"the malformed number '{text}'", "a number such as 64, 0x40, 0.5 or 1e-3") from error
    if isinstance(value, int) and value > LEAST_WITHOUT_SIGN:
        raise too_large(text, at)
    if not math.isfinite(value):
        raise ExpressionError(at, f"the number {text}, beyond double precision", "a finite number")
    return value


def too_large(text: str, at: Location) -> ExpressionError:
    return ExpressionError(at, f"the integer {text}, beyond 64 bits", f"at most {INT_MAX}")


def _integer_or_float(text: str) -> int | float:
    if re.fullmatch(r"[0-9_]+|0[xXbB][0-9a-fA-F_]+", text):
        return int(text, 0)
    return float(text)
