"""What a score_mod hides, as `torch.where(seen, score, -inf)`, taken out of the score: hidden tiles are skipped."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from flashgen.flex.values import NOWHERE
from flashgen.lang.syntax import Call, Chain, Index, Literal, Name, Operation, Syntax, leftmost, pieces

_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_MINUS_INFINITY = -float("inf")


def apart(score: Syntax) -> tuple[Syntax, list[Syntax]]:
    """The score where it is finite, and the tests that are all true there.

    A test that reads the score stays: what is visible is decided before the scores.
    """
    match score:
        case Call(function="where", arguments=(test, then, otherwise)) if not _reads_score(test):
            if _is_hidden(otherwise):
                rest, tests = apart(then)
                return rest, [test, *tests]
            if _is_hidden(then):
                rest, tests = apart(otherwise)
                return rest, [_opposite(test), *tests]
        case Operation(symbol="+", operands=(_, _)):
            return _apart_of_sum(score)
    return score, []


def _apart_of_sum(score: Syntax) -> tuple[Syntax, list[Syntax]]:
    first, operations = leftmost(score, "+")
    rest, tests = apart(first)
    for operation in operations:
        right, others = apart(operation.operands[1])
        tests = [*tests, *others]
        rest = _sum(operation, rest, right) if tests else operation
    return rest, tests


def is_test(syntax: Syntax, tests: Collection[str]) -> bool:
    """Whether it is true or false; `tests` are the inputs and params that are. What is left of a score may be, where a
    number stood beside it."""
    match syntax:
        case Name(id=name) | Index(input=name):
            return name in tests
        case Literal(value=value):
            return isinstance(value, bool)
        case Operation(symbol="~" | "&" | "|" | "^", operands=operands):
            return all(is_test(each, tests) for each in operands)
        case Call(function="where", arguments=(_, *branches)):
            return all(is_test(each, tests) for each in branches)
        case Call(function=function):
            return function in ("any", "all")
    return isinstance(syntax, Chain)


def conjuncts(mask: Syntax) -> list[Syntax]:
    """The masks that are joined with `&`."""
    found: list[Syntax] = []
    stack = [mask]
    while stack:
        each = stack.pop()
        if isinstance(each, Operation) and each.symbol == "&":
            stack.extend(reversed(each.operands))
        elif not (isinstance(each, Literal) and each.value is True):
            found.append(each)
    return found


def _sum(whole: Operation, left: Syntax, right: Syntax) -> Syntax:
    """Nothing is left of an additive mask, 0 where a key is visible."""
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Literal) and one.value == 0:
            return other
    return replace(whole, operands=(left, right))


def _opposite(test: Syntax) -> Syntax:
    match test:
        case Chain(symbols=(symbol,), operands=operands) if all(_is_whole(each) for each in operands):
            return replace(test, symbols=(_OPPOSITE[symbol],))
        case Operation(symbol="~", operands=(inner,)):
            return inner
    return Operation(NOWHERE, "~", (test,), height=test.height + 1)


def _is_whole(syntax: Syntax) -> bool:
    """Whether it is made of positions and integers alone, of which none is NaN."""
    names = ("b", "h", "q", "k")
    return all(
        (isinstance(each, Name) and each.id in names)
        or (isinstance(each, Literal) and isinstance(each.value, int))
        or (isinstance(each, Operation) and each.symbol != "/")
        for each in pieces(syntax)
    )


def _is_hidden(syntax: Syntax) -> bool:
    return isinstance(syntax, Literal) and syntax.value == _MINUS_INFINITY


def _reads_score(syntax: Syntax) -> bool:
    return any(isinstance(each, Name) and each.id == "score" for each in pieces(syntax))
