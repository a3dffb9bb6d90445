"""Expressions that say the same, told by what they are made of: however often a part is shared, once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace

from flashgen.lang.syntax import Call, Chain, Conditional, Index, Literal, Name, Operation, Syntax, parts


class Alike:
    """Of expressions that say the same, one."""

    def __init__(self) -> None:
        # By the id of each, which is kept: the one that stands for it.
        self._same: dict[int, tuple[Syntax, Syntax]] = {}
        self._first: dict[Hashable, Syntax] = {}

    def of(self, syntax: Syntax) -> Syntax:
        for each in each_once([syntax]):
            if id(each) not in self._same:
                inner = [self._same[id(part)][1] for part in parts(each)]
                key = (type(each), _own(each), *map(id, inner))
                self._same[id(each)] = each, self._first.setdefault(key, with_parts(each, inner))
        return self._same[id(syntax)][1]

    def known(self, identity: int) -> Syntax | None:
        """The one that stands for the expression of this id, if it has been asked for."""
        return self._same.get(identity, (None, None))[1]


def replaced(roots: Sequence[Syntax], other: Callable[[Syntax], Syntax | None]) -> list[Syntax]:
    """The expressions with others in the place of those of which `other` says so."""
    new: dict[int, Syntax] = {}
    for each in (part for root in roots for part in each_once([root])):
        new[id(each)] = other(each) or with_parts(each, [new[id(part)] for part in parts(each)])
    return [new[id(root)] for root in roots]


def _own(syntax: Syntax) -> Hashable:
    """What an expression is besides its parts."""
    match syntax:
        case Literal(value=value):
            return repr(value)
        case Name(id=name) | Call(function=name) | Index(input=name) | Operation(symbol=name):
            return name
        case Chain(symbols=symbols):
            return symbols
    return None


def each_once(roots: Sequence[Syntax]) -> Iterator[Syntax]:
    """Every part, once, operands before what reads them."""
    seen: set[int] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        syntax, ready = stack.pop()
        if ready:
            yield syntax
        elif id(syntax) not in seen:
            seen.add(id(syntax))
            stack.append((syntax, True))
            stack.extend((part, False) for part in reversed(parts(syntax)))


def with_parts(syntax: Syntax, new: Sequence[Syntax]) -> Syntax:
    if all(one is other for one, other in zip(new, parts(syntax), strict=True)):
        return syntax
    heights = [part.height for part in new]
    match syntax:
        case Operation(operands=(_, _)) if not isinstance(new[1], Operation):
            # A sum of many terms is long, not deep.
            return replace(syntax, operands=tuple(new), height=max(heights[0], 1 + heights[1]))
        case Operation() | Chain():
            return replace(syntax, operands=tuple(new), height=1 + max(heights))
        case Conditional():
            return replace(syntax, then=new[0], test=new[1], otherwise=new[2], height=1 + max(heights))
        case Call():
            return replace(syntax, arguments=tuple(new), height=1 + max(heights))
        case Index():
            return replace(syntax, indices=tuple(new), height=1 + max(heights))
    return syntax
