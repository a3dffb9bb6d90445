"""A score's sum as the list of its addends, and back."""

from __future__ import annotations

from collections import Counter

from flashgen.lang.fold import fold
from flashgen.lang.nodes import Expr, Op, op
from flashgen.lang.traversal import walk
from flashgen.lang.variables import QK


def addends(expr: Expr) -> list[Expr]:
    """The addends of a sum that the score is in, signs inside; a sum that is read twice is one addend."""
    uses = Counter(child for node in walk(expr) for child in node.children)
    with_score = reading_score(expr)
    found: list[Expr] = []
    stack = [(expr, False)]
    while stack:
        node, negative = stack.pop()
        if isinstance(node, Op) and node.name in ("add", "sub") and uses[node] < 2 and node in with_score:
            left, right = node.args
            stack += [(right, negative ^ (node.name == "sub")), (left, negative)]
        else:
            found.append(negated(node) if negative else node)
    return found


def negated(expr: Expr) -> Expr:
    """-expr, whose sign `added` sees."""
    if isinstance(expr, Op) and expr.name == "neg":
        return expr.args[0]
    return fold(op("neg", expr))


def added(terms: list[Expr]) -> Expr | None:
    """The addends as one expression; a negated addend is subtracted."""
    result: Expr | None = None
    for term in sorted(terms, key=lambda t: isinstance(t, Op) and t.name == "neg"):
        if result is None:
            result = term
        elif isinstance(term, Op) and term.name == "neg":
            result = op("sub", result, term.args[0])
        else:
            result = op("add", result, term)
    return result


def reading_score(expr: Expr) -> set[Expr]:
    """The parts of an expression in which the dot product is."""
    found: set[Expr] = set()
    for node in walk(expr):
        if node is QK or any(child in found for child in node.children):
            found.add(node)
    return found
