"""any, all and sum over an index: how long they may be, and those whose length a call decides as nodes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from flashgen.lang.fold import simplify
from flashgen.lang.nodes import Expr, Gather, Index, Reduction, index, op, reduction
from flashgen.lang.traversal import inputs, substitute, walk
from flashgen.lang.traversal import variables as variables_of
from flashgen.lang.vocabulary import PER_SEQUENCE, VARYING

JOINED = {"any": "or", "all": "and", "sum": "add"}
# More terms than this, those of reductions in each other multiplied, are not written out.
MAX_TERMS = 256


class TooLong(Exception):
    """A reduction inside others would be written out in more terms than there may be."""


def reads_of_length(length: Expr) -> str:
    """What a length reads that no length may, in words; empty where it is one for a whole call."""
    names = variables_of(length) & (VARYING | PER_SEQUENCE)
    if names:
        return f"'{min(names)}'"
    if inputs(length):
        return f"the input '{min(inputs(length))}'"
    if any(isinstance(node, Reduction) for node in walk(length)):
        return "a reduction"
    return next((f"'{_word(node)}'" for node in walk(length) if isinstance(node, Index)), "")


def provisional(word: str, length: Expr) -> Index:
    """An index for a term that is still to be read, unlike all that any expression has."""
    return index(f"{word}'", length)


def _word(counter: Index) -> str:
    """What the user calls an index, provisional or final."""
    return counter.word.removesuffix("'")


def joined(name: str, terms: list[Expr]) -> Expr:
    """The terms, all of one type, written out from the left."""
    whole = terms[0]
    for term in terms[1:]:
        whole = simplify(op(JOINED[name], whole, term))
    return whole


def over(name: str, counter: Index, term: Expr, taken: Collection[str]) -> Expr:
    """The reduction of a term that reads a provisional index. In a let, one of the same word may be inside it."""
    inside = {node.index.word for node in walk(term) if isinstance(node, Reduction)}
    word = own = _word(counter)
    number = 2
    while word in inside or (word != own and word in taken):
        word, number = f"{own}{number}", number + 1
    final = index(word, counter.length)
    return simplify(reduction(name, final, substitute(term, {counter: final})))


def counted_sizes(name: str, sizes: Sequence[Expr], *expressions: Expr) -> frozenset[Expr]:
    """Of the sizes of an input's dimensions those along which reductions count all elements, and nothing else reads.

    Of no elements a reduction has no terms: such a dimension may be empty.
    """
    counted, others = set[Expr](), set[Expr]()
    for node in walk(*expressions):
        if isinstance(node, Gather) and node.input == name:
            for index, size in zip(node.indices, sizes, strict=True):
                (counted if isinstance(index, Index) and index.length is size else others).add(size)
    return frozenset(counted - others)
