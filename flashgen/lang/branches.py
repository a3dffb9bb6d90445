"""Branches that are not taken, as autograd sees them.

Autograd differentiates both branches of `where`, and multiplies what the one not taken has for a derivative by 0:
`where(k < q, a[h] / (q - k), 0.0)` so has NaN for the gradient of a, since 0 times infinity is NaN. What may become
infinite or NaN there gets another operand, 1, where nothing that is taken reads it. So does what the caller gives for
each pair, such as the features of padding, below an operation whose derivative depends on it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce

from flashgen.lang.fold import simplify
from flashgen.lang.intervals import assumed
from flashgen.lang.magnitudes import is_tame, keeps_finite
from flashgen.lang.nodes import Const, Expr, Gather, Op, Type, const, op
from flashgen.lang.traversal import indices, inputs, rebuild, variables, walk

# Their first operand does no harm.
_DIVISIONS = frozenset({"truediv", "mod", "floordiv"})

# Their derivative is the same whatever their operands are.
_LINEAR = frozenset({"add", "sub", "neg", "where"})

# Tests that all hold where something that is taken reads a node; none where that is so for every pair.
Tests = tuple[Expr, ...]


def with_tame_branches(root: Expr, learned: Collection[str]) -> Expr:
    """The same value with finite derivatives by `score` and the `learned` inputs, wherever what is taken has them."""
    nodes = list(walk(root))
    bent = _bent(nodes, frozenset(learned))
    if is_tame(root) and not any(map(_differs, bent)):
        return root
    read = _where_read(nodes, frozenset(learned))
    done: dict[Expr, Expr] = {}
    for node in nodes:
        children = tuple(done[child] for child in node.children)
        # A node that several terms of a sum share cannot ask what one of them asks.
        if isinstance(node, Op) and read[node] and indices(*read[node]) <= indices(node):
            children = _guarded(node, children, _all(read[node]))
        done[node] = rebuild(node, children)
        if node in bent and read[node] and _differs(node) and indices(*read[node]) <= indices(node):
            done[node] = op("where", _all(read[node]), done[node], const(1.0))
    return done[root]


def _differs(node: Expr) -> bool:
    """Whether it is a float that the caller gives for each pair, row or key: one number that is NaN is so for all."""
    return isinstance(node, Gather) and node.type is Type.FLOAT and not variables(node).isdisjoint({"q", "k"})


def _bent(nodes: list[Expr], learned: frozenset[str]) -> set[Expr]:
    """The floats on which a derivative depends: what lies below an operation that has one and is not linear."""
    found: set[Expr] = set()
    for node in reversed(nodes):
        own = node in found or (isinstance(node, Op) and node.name not in _LINEAR and _derives(node, learned))
        if own and node.type is Type.FLOAT:
            found.update(child for child in node.children if child.type is Type.FLOAT)
    return found


def _derives(node: Expr, learned: frozenset[str]) -> bool:
    return "score" in variables(node) or not learned.isdisjoint(inputs(node))


def _where_read(nodes: list[Expr], learned: frozenset[str]) -> Mapping[Expr, Tests]:
    """Of each node, for which pairs something that is taken reads it. A branch without a derivative does no harm."""
    read: dict[Expr, Tests] = {nodes[-1]: ()}

    def add(node: Expr, tests: Tests) -> None:
        read[node] = _either(read[node], tests) if node in read else tests

    for node in reversed(nodes):
        own = read[node]
        if not (isinstance(node, Op) and node.name == "where" and node.type is Type.FLOAT):
            for child in node.children:
                add(child, own)
            continue
        test, *branches = node.args
        add(test, own)
        for branch, taken in zip(branches, (test, _not(test)), strict=True):
            add(branch, (*own, taken) if _derives(branch, learned) and taken not in own else own)
    return read


def _either(left: Tests, right: Tests) -> Tests:
    """What holds where one of two groups of tests does, as far as it is short to say."""
    common = tuple(test for test in left if test in right)
    alone, others = ([test for test in tests if test not in common] for tests in (left, right))
    if not alone or not others or (len(alone) == len(others) == 1 and alone[0] is _not(others[0])):
        return common
    return (*common, op("or", _all(alone), _all(others)))


def _all(tests: Sequence[Expr]) -> Expr:
    return reduce(lambda left, right: op("and", left, right), tests)


def _not(test: Expr) -> Expr:
    return simplify(op("not", test))


def _guarded(node: Op, children: tuple[Expr, ...], test: Expr) -> tuple[Expr, ...]:
    """The operands of an operation, of which those that may do harm are 1 where the test fails."""
    if node.type is not Type.FLOAT or keeps_finite(node):
        return children
    # By their place: a number may be divided by itself.
    kept = children[:1] if node.name in _DIVISIONS else ()
    rest = zip(node.args[len(kept) :], children[len(kept) :], strict=True)
    return (*kept, *(child if _is_harmless(arg) else op("where", test, child, const(1.0)) for arg, child in rest))


def _is_harmless(operand: Expr) -> bool:
    """Whether it is a constant, or a whole number from 1 on."""
    whole = operand.args[0] if isinstance(operand, Op) and operand.name == "to_float" else None
    return isinstance(operand, Const) or (whole is not None and assumed().of(whole).low > 0)
