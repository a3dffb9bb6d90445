"""Going over an expression: its nodes, what it reads, the same with other parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, MutableMapping
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakKeyDictionary

from flashgen.lang.nodes import Expr, Gather, Index, Op, Reduction, Var, gather, index, op, reduction

T = TypeVar("T")


def walk(*roots: Expr, to: Collection[Expr] = ()) -> Iterator[Expr]:
    """Every node below the roots, each once, operands before their users; not those below a node of `to`."""
    seen: set[Expr] = set()
    stack = [*reversed(roots)]
    while stack:
        node = stack[-1]
        waiting = [] if node in seen or node in to else [child for child in node.children if child not in seen]
        if waiting:
            stack += reversed(waiting)
            continue
        stack.pop()
        if node not in seen:
            seen.add(node)
            yield node


def bottom_up(root: Expr, known: MutableMapping[Expr, T], compute: Callable[[Expr], T]) -> T:
    """What is computed of the root, once of each node below it and of operands first; `known` keeps all of it.

    A deep expression is no deep recursion: what `compute` asks of the operands is known by then.
    """
    if root not in known:
        for node in walk(root, to=known):
            if node not in known:
                known[node] = compute(node)
    return known[root]


@dataclass(frozen=True)
class _Reads:
    """What a node reads: its variables, its input tensors, and the indices of reductions that it stands inside."""

    variables: frozenset[str] = frozenset()
    inputs: frozenset[str] = frozenset()
    indices: frozenset[Index] = frozenset()


_reads: WeakKeyDictionary[Expr, _Reads] = WeakKeyDictionary()


def variables(*roots: Expr) -> frozenset[str]:
    """The names of the variables that the expressions read."""
    return frozenset().union(*(_read(root).variables for root in roots))


def inputs(*roots: Expr) -> frozenset[str]:
    """The names of the input tensors that the expressions read."""
    return frozenset().union(*(_read(root).inputs for root in roots))


def indices(*roots: Expr) -> frozenset[Index]:
    """The indices that the expressions read, but for those of reductions within them: empty where they have a value."""
    return _own_index(*roots).union(*(_read(root).indices for root in roots))


def _own_index(*nodes: Expr) -> frozenset[Index]:
    """The nodes that are indices: what is kept of an index does not name it, and so does not keep it."""
    return frozenset(node for node in nodes if isinstance(node, Index))


def _read(root: Expr) -> _Reads:
    return bottom_up(root, _reads, _own_reads)


def _own_reads(node: Expr) -> _Reads:
    """What a node reads, of which its children know theirs."""
    named = frozenset([node.name]) if isinstance(node, Var) else frozenset()
    read = frozenset([node.input]) if isinstance(node, Gather) else frozenset()
    below = [_reads[child] for child in node.children]
    counted = _own_index(*node.children).union(*(each.indices for each in below))
    counted -= {node.index} if isinstance(node, Reduction) else set()
    return _Reads(named.union(*(b.variables for b in below)), read.union(*(b.inputs for b in below)), counted)


def rebuild(node: Expr, children: tuple[Expr, ...]) -> Expr:
    """The same node over other children."""
    if children == node.children:
        return node
    if isinstance(node, Gather):
        return gather(node.input, children, node.type)
    if isinstance(node, Op):
        return op(node.name, *children)
    if isinstance(node, Index):
        return index(node.word, *children)
    if isinstance(node, Reduction):
        assert isinstance(children[0], Index), "an index gives way to nothing but an index"
        return reduction(node.name, children[0], children[1])
    return node


def transform(root: Expr, rule: Callable[[Expr], Expr]) -> Expr:
    """Rewrite bottom-up: `rule` sees each node once, its children already rewritten."""
    done: dict[Expr, Expr] = {}
    for node in walk(root):
        children = tuple([done[child] for child in node.children])
        done[node] = rule(node if children == node.children else rebuild(node, children))
    return done[root]


def substitute(root: Expr, replacements: dict[Expr, Expr]) -> Expr:
    """Replace whole nodes (variables, usually) by other expressions of the same type."""
    return transform(root, lambda node: replacements.get(node, node))
