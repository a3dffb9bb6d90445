"""What parses but may not be what was meant: bitwise operators that take a comparison's operand from it, indices that
count from the end, quotients that are compared as if they were whole, and products with infinity."""

from __future__ import annotations

import math
from collections.abc import Iterator

from flashgen.lang.syntax import Chain, Index, Literal, Operation, Syntax, pieces
from flashgen.lang.written import written

BITWISE = frozenset({"&", "|", "^"})


def doubts(syntax: Syntax) -> Iterator[str]:
    """A sentence with its place for each comparison that has one of `&`, `|`, `^` in an operand without parentheses,
    for each negative number as an index, for each test whether two quotients are equal, and for each factor `inf`.

    The former bind tighter than comparisons, as in Python: `k <= q & k > q - 5` is `k <= (q & k) > q - 5`.
    """
    for piece in pieces(syntax):
        if isinstance(piece, Operation) and piece.symbol == "*" and any(map(_is_infinite, piece.operands)):
            yield (
                f"{piece.at}: '{written(piece)}' is NaN where the other factor is 0; what is to be hidden stands under "
                "'mask', or is written 'where(test, -inf, 0.0)'"
            )
        if isinstance(piece, Index):
            for index in piece.indices:
                if isinstance(index, Operation) and index.symbol == "-" and _is_positive(*index.operands):
                    yield (
                        f"{index.at}: the index '{written(index)}' of '{piece.input}' reads the element at 0, the "
                        "nearest that there is; the last of a dimension n is at 'n - 1'"
                    )
        if isinstance(piece, Chain):
            for first, symbol, second in zip(piece.operands, piece.symbols, piece.operands[1:], strict=False):
                if symbol in ("==", "!=") and _is_quotient(first) and _is_quotient(second):
                    yield (
                        f"{first.at}: '{written(first)}' and '{written(second)}' are fractions, which '/' gives; "
                        "where numbers of blocks are compared write '//'"
                    )
            operator = next((o for o in piece.operands if _is_open(o)), None)
            if isinstance(operator, Operation):
                yield (
                    f"{operator.at}: '{operator.symbol}' binds tighter than the comparisons beside it: this is "
                    f"'{_as_read(piece)}'; where tests are meant write '{_as_tests(piece)}', "
                    "else parentheses as in the former"
                )


def _is_positive(operand: Syntax, *others: Syntax) -> bool:
    """Whether this is a number above 0, and nothing else."""
    return not others and isinstance(operand, Literal) and operand.value > 0


def _is_infinite(operand: Syntax) -> bool:
    if isinstance(operand, Operation) and len(operand.operands) == 1:
        (operand,) = operand.operands
    return isinstance(operand, Literal) and operand.value == math.inf


def _is_quotient(operand: Syntax) -> bool:
    return isinstance(operand, Operation) and operand.symbol == "/"


def _is_open(operand: Syntax) -> bool:
    return isinstance(operand, Operation) and operand.symbol in BITWISE and not operand.bracketed


def _as_read(chain: Chain) -> str:
    texts = [f"({written(o)})" if _is_open(o) else _operand(o) for o in chain.operands]
    return "".join([texts[0], *(f" {s} {t}" for s, t in zip(chain.symbols, texts[1:], strict=True))])


def _as_tests(chain: Chain) -> str:
    """The comparisons in parentheses, with the bitwise operators between them."""
    tests: list[list[str]] = [[]]
    between: list[str] = []
    for index, operand in enumerate(chain.operands):
        if index:
            tests[-1].append(chain.symbols[index - 1])
        for part, symbol in _parts(operand):
            if symbol:
                between.append(symbol)
                tests.append([])
            tests[-1].append(_operand(part))
    texts = [f"({' '.join(test)})" if len(test) > 1 else test[0] for test in tests]
    return " ".join([texts[0], *(f"{symbol} {text}" for symbol, text in zip(between, texts[1:], strict=True))])


def _parts(operand: Syntax) -> list[tuple[Syntax, str]]:
    """What bitwise operators join, each with the operator before it, empty for the first."""
    found: list[tuple[Syntax, str]] = []
    while isinstance(operand, Operation) and _is_open(operand) and len(operand.operands) == 2:
        left, right = operand.operands
        found.append((right, operand.symbol))
        operand = left
    return [(operand, ""), *reversed(found)]


def _operand(syntax: Syntax) -> str:
    return f"({written(syntax)})" if isinstance(syntax, Chain) else written(syntax)
