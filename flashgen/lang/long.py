"""Which parts of an expression need a name, lest its text has no end."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from flashgen.lang.nodes import Expr

# A text that would name more values than this is taken apart.
LONGEST = 40


def long_parts(nodes: Iterable[Expr], named: Collection[Expr]) -> list[Expr]:
    """Which of the nodes, operands first, are to have a name lest a text without them names more than LONGEST values.

    What is `named` counts as one, however often it is read: written as a tree, a graph may be of any size.
    """
    found: list[Expr] = []
    lengths: dict[Expr, int] = {}
    for node in nodes:
        length = 1 if node in named else 1 + sum(lengths.get(child, 1) for child in node.children)
        if length > LONGEST:
            found.append(node)
            length = 1
        lengths[node] = length
    return found
