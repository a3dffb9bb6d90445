"""Integer minima and maxima without a negated operand.

NVIDIA's assembler up to CUDA 12.9 joins two signed maxima, or two minima, into one instruction of newer GPUs and loses
a minus in front of an operand: max(max(t, -u), v) becomes max(t, u, v), silently. So no kernel asks for it: a
comparison is asked of each operand, and what is left is written as a sum, which has no minus to lose. Minima and maxima
of floats keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeGuard

from flashgen.lang.fold import simplify
from flashgen.lang.nodes import FLIPPED, Const, Expr, Op, Type, const, op
from flashgen.lang.traversal import indices, inputs, transform, variables, walk

_ORDERS = frozenset({"lt", "le", "gt", "ge"})
_OTHER = {"min": "max", "max": "min", "tile_min": "tile_max", "tile_max": "tile_min"}
# No integer of 32 bits reaches this far.
_FAR = 2**40

Test = Callable[[Expr], bool]


def without_negated_operands(root: Expr, fits_int32: Test, may_wrap: Test) -> Expr:
    """The same value, where no 32-bit minimum or maximum, nor one over a tile, has a negated operand.

    An absolute value counts as the maximum of a value and its negation, which compilers make of it. `may_wrap` tells
    which integers may pass 64 bits.
    """
    nodes = list(walk(root))
    if not any(_is_absolute(node) or _negated(node) is not None for node in nodes) or _compares_one_distance(nodes):
        return root
    asked = transform(root, lambda node: _asked(node, fits_int32, may_wrap))
    return transform(asked, lambda node: _as_sum(node, fits_int32))


def _compares_one_distance(nodes: Sequence[Expr]) -> bool:
    """Whether an absolute value in the only comparison there is, is all: nothing is there to join it with."""
    joined = [node for node in nodes if isinstance(node, Op) and node.type is Type.INT and node.name in _OTHER]
    negated = [node for node in nodes if _negated(node) is not None]
    orders = [node for node in nodes if isinstance(node, Op) and node.name in _ORDERS]
    return len(orders) == 1 and not joined and not negated


def _asked(node: Expr, fits_int32: Test, may_wrap: Test) -> Expr:
    """A comparison asked of its operands, but for one that would then read less, such as max(27, -k) < 0.

    A kernel is laid out by what an expression reads, and has no place for a pair's answer that is known before.
    """
    found = _asked_of_operands(node, fits_int32, may_wrap)
    return found if all(read(found) == read(node) for read in (variables, inputs, indices)) else node


def _asked_of_operands(node: Expr, fits_int32: Test, may_wrap: Test) -> Expr:
    """max(t, -u) <= c as (t <= c) & (u >= -c), and so on."""
    if not (isinstance(node, Op) and node.name in _ORDERS and node.args[0].type is Type.INT):
        return node
    left, right = node.args
    for relation, side, other in ((node.name, left, right), (FLIPPED[node.name], right, left)):
        if not fits_int32(side):
            continue
        if _has_negated_operand(side):
            every = (relation in ("lt", "le")) == (side.name != "min")
            tests = [op(relation, argument, other) for argument in _operands(side)]
            parts = [_asked_of_operands(test, fits_int32, may_wrap) for test in tests]
            return simplify(op("and" if every else "or", *parts))
        u = _negated(side)
        if u is not None and isinstance(other, Const):
            return simplify(op(FLIPPED[relation], u, const(-min(max(int(other.value), -_FAR), _FAR))))
        if u is not None:
            total = simplify(op("add", u, other))
            if may_wrap(total):
                total = op("add", u, _within_reach(other))
            return simplify(op(FLIPPED[relation], total, const(0)))
    return simplify(node)


def _within_reach(expr: Expr) -> Expr:
    """The nearest value to an integer that no integer of 32 bits passes: with these it compares alike."""
    return op("min", op("max", expr, const(-_FAR)), const(_FAR))


def _has_negated_operand(node: Expr) -> TypeGuard[Op]:
    """Whether it is a minimum or maximum, of others perhaps, with a negated operand."""
    if _is_extremum(node):
        return any(_negated(x) is not None or _has_negated_operand(x) for x in node.args)
    return _is_absolute(node)


def _operands(extremum: Op) -> tuple[Expr, ...]:
    return (extremum.args[0], op("neg", extremum.args[0])) if _is_absolute(extremum) else extremum.args


def _as_sum(node: Expr, fits_int32: Test) -> Expr:
    """max(t, -u) as max(t + u, 0) - u; the minimum of negated values as their negated maximum."""
    if not (isinstance(node, Op) and node.type is Type.INT and node.name in _OTHER):
        return node
    if not all(map(fits_int32, node.args)):
        return node
    arguments = [_absolute_as_sum(x) if node.name in ("max", "tile_max") else x for x in node.args]
    found = [_negated(argument) for argument in arguments]
    values = [u for u in found if u is not None]
    if len(values) == len(found):
        return op("neg", op(_OTHER[node.name], *values))
    if not values:
        return op(node.name, *arguments)
    return _with_negated(node.name, arguments[0 if found[0] is None else 1], values[0])


def _absolute_as_sum(node: Expr) -> Expr:
    """abs(u), which is the maximum of u and -u, where it stands in another maximum."""
    return _with_negated("max", node.children[0], node.children[0]) if _is_absolute(node) else node


def _with_negated(name: str, t: Expr, u: Expr) -> Expr:
    """The minimum or maximum of t and -u."""
    return simplify(op("sub", op(name, simplify(op("add", t, u)), const(0)), u))


def _is_absolute(node: Expr) -> bool:
    return isinstance(node, Op) and node.name == "abs" and node.type is Type.INT


def _negated(node: Expr) -> Expr | None:
    """u where the node is the integer -u."""
    if isinstance(node, Op) and node.type is Type.INT:
        if node.name == "neg":
            return node.args[0]
        if node.name == "mul" and const(-1) in node.args:
            return node.args[0] if node.args[1] is const(-1) else node.args[1]
    return None


def _is_extremum(node: Expr) -> TypeGuard[Op]:
    return isinstance(node, Op) and node.name in ("min", "max") and node.type is Type.INT
