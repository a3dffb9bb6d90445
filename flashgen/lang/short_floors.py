"""Floors that fit 32 bits wherever they are taken.

where(n < 8, n, floor(log(n / 8))) takes no floor of minus infinity, but computes it for n = 0, and needs 64 bits to say
so. What is not taken may be anything: where(n < 8, n, floor(log(max(n, 8) / 8))) is the same, and its floor is short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flashgen.lang.nodes import FLIPPED, NEGATED, Const, Expr, Op, Type, const, op
from flashgen.lang.traversal import substitute, transform, walk

# What keeps an integer where a comparison with a constant holds, and how far from that.
_LIMITS = {"ge": ("max", 0), "gt": ("max", 1), "le": ("min", 0), "lt": ("min", -1)}


def with_short_floors(root: Expr, fits_int32: Callable[[Expr], bool]) -> Expr:
    """The same value; where a branch has long floors, what its test limits is kept so if that makes them short."""
    if all(map(fits_int32, _floors(root))):
        return root

    def limited(node: Expr) -> Expr:
        if not (isinstance(node, Op) and node.name == "where"):
            return node
        test, taken, other = node.args
        return op("where", test, _limited(taken, test, True, fits_int32), _limited(other, test, False, fits_int32))

    return transform(root, limited)


def _floors(root: Expr) -> Iterator[Expr]:
    return (node for node in walk(root) if isinstance(node, Op) and node.name == "floor")


def _limited(branch: Expr, test: Expr, holds: bool, fits_int32: Callable[[Expr], bool]) -> Expr:
    """A branch that is taken where a test holds, or where it does not."""
    if all(map(fits_int32, _floors(branch))):
        return branch
    for value, inside in _limits(test, holds):
        found = substitute(branch, {value: inside})
        if all(map(fits_int32, _floors(found))):
            return found
    return branch


def _limits(test: Expr, holds: bool) -> Iterator[tuple[Expr, Expr]]:
    """Integers that a test compares with constants, and the same within what the test says of them."""
    if not isinstance(test, Op):
        return
    if test.name == ("and" if holds else "or") and test.type is Type.BOOL:
        for part in test.args:
            yield from _limits(part, holds)
    elif test.name == "not" and test.type is Type.BOOL:
        yield from _limits(test.args[0], not holds)
    elif test.name in _LIMITS and test.args[0].type is Type.INT:
        left, right = test.args
        for relation, value, limit in ((test.name, left, right), (FLIPPED[test.name], right, left)):
            if isinstance(limit, Const) and not isinstance(value, Const):
                name, beyond = _LIMITS[relation if holds else NEGATED[relation]]
                yield value, op(name, value, const(int(limit.value) + beyond))
