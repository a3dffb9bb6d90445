"""Derivatives of expressions, by one sweep from the result down to what it is made of.

A branch of `where` that is not taken gets exactly 0, also where the branch is infinite or NaN there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashgen.lang.fold import fold, simplify
from flashgen.lang.nodes import Expr, Gather, Index, Reduction, Type, const, op, reduction
from flashgen.lang.partials import ZERO, partials
from flashgen.lang.products import ONE, product
from flashgen.lang.shares import Partial, Share, as_one, value
from flashgen.lang.traversal import indices, walk
from flashgen.lang.variables import SCORE


@dataclass(frozen=True)
class LoadSite:
    """One place where a learned input is read: the gradient at `gather`'s indices gains dS_out * `derivative`."""

    gather: Gather
    derivative: Expr


@dataclass(frozen=True)
class Gradients:
    """How a variant's score depends on the scaled dot product, and on each learned input at each place it is read.

    `score` is d score_out / d score. `sites` holds for each learned input, in the order asked for, its places with a
    derivative that is not zero throughout.
    """

    score: Expr
    sites: tuple[tuple[str, tuple[LoadSite, ...]], ...]


def gradients(score: Expr, learned: Sequence[str]) -> Gradients:
    """The derivatives of a score expression by `score` and by the elements of the inputs named in `learned`."""
    reads = [node for node in walk(score) if isinstance(node, Gather) and node.input in learned]
    by_score, *by_read = derivatives(score, [SCORE, *reads])
    sites = [LoadSite(read, found) for read, found in zip(reads, by_read, strict=True) if found is not ZERO]
    return Gradients(by_score, tuple((name, tuple(s for s in sites if s.gather.input == name)) for name in learned))


def derivatives(expr: Expr, wrt: Sequence[Expr]) -> tuple[Expr, ...]:
    """d expr / d node for each FLOAT node of `wrt`: variables or gathers of float inputs, usually.

    One sweep finds them all. They are folded, and read what `expr` computes: that of softcap(x) is 1 - t * t
    of the same node t. 0.0 where `expr` does not depend on the node, or nowhere smoothly. None of the nodes has another
    value for each term of a reduction.
    """
    active: set[Expr] = set()
    order: list[Expr] = []
    for node in walk(expr):
        if node in wrt or (node.type is Type.FLOAT and any(child in active for child in node.children)):
            active.add(node)
            order.append(node)
    shares: dict[Expr, list[Share]] = {node: [] for node in order}
    shares.setdefault(expr, []).append(Share(ONE))
    found = dict.fromkeys(wrt, ZERO)
    for node in reversed(order):
        if node in found:
            found[node] = fold(value(shares[node]).expression())
        if not shares[node]:
            # What is read inside a reduction alone has its share from there.
            continue
        share = as_one(shares[node])
        for partial in _of_sum(node, wrt) if isinstance(node, Reduction) else partials(node):
            further = share.through(partial)
            if partial.operand in active and further is not None:
                shares[partial.operand].append(further)
    return tuple(found[node] for node in wrt)


def _of_sum(node: Reduction, wrt: Sequence[Expr]) -> Sequence[Partial]:
    """How a sum depends on what is asked for: by the sum of the derivatives of its term."""
    inside = set(walk(node.term))
    leaves = [leaf for leaf in wrt if leaf in inside]
    assert not any(node.index in indices(leaf) for leaf in leaves), "a derivative by what differs from term to term"
    slopes = zip(leaves, derivatives(node.term, leaves), strict=True)
    return [Partial(leaf, product(_added(node.index, slope))) for leaf, slope in slopes if slope is not ZERO]


def _added(index: Index, term: Expr) -> Expr:
    """The sum of a term, in any order."""
    if index in indices(term):
        return reduction("sum", index, term)
    count = simplify(op("to_float", simplify(op("max", index.length, const(0)))))
    return simplify(op("mul", term, count))
