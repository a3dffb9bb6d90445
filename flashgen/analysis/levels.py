"""Where in a kernel a value is computed: once a program, once a row, once a column, or once a pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Sequence
from weakref import WeakKeyDictionary

from flashgen.lang.intervals import Ranges
from flashgen.lang.long import long_parts
from flashgen.lang.nodes import Const, Expr, Index, Op, Type, Var, const, op
from flashgen.lang.recursion import Recursion
from flashgen.lang.traversal import bottom_up, indices, transform, walk
from flashgen.lang.variables import K_FIRST

Level = frozenset[str]

ONCE: Level = frozenset()
ROW: Level = frozenset({"row"})
COL: Level = frozenset({"col"})
PAIR = ROW | COL

# `row_h` is the head where heads share a tile.
_VARIABLES = {
    "q": ROW, "q_start": ROW, "q_end": ROW, "row_h": ROW, "k": COL, "k_first": COL, "k_last": COL, "qk": PAIR,
}  # fmt: skip
_WITHOUT_ROUNDING = frozenset({"add", "sub", "neg", "abs", "min", "max"})
_known: WeakKeyDictionary[Expr, Level] = WeakKeyDictionary()


def level(expr: Expr) -> Level:
    """Which axes of the tile a value varies along; a reduction over rows or columns is one number."""
    return bottom_up(expr, _known, _level)


def _level(node: Expr) -> Level:
    if isinstance(node, Var):
        return _VARIABLES.get(node.name, ONCE)
    found = ONCE.union(*(_known[child] for child in node.children))
    return found - ROW if is_reduction(node) else found


def is_reduction(expr: Expr) -> bool:
    """Whether it is the least or the greatest of a tile's values."""
    return isinstance(expr, Op) and expr.name in ("tile_min", "tile_max")


def shared(
    roots: Collection[Expr], lets: Sequence[tuple[str, Expr]], walked: Level = COL, given: Collection[Expr] = ()
) -> list[Expr]:
    """The nodes along the walked axis that deserve a name: used twice, long, or named by the spec. Operands come first.

    What is `given` has one, so that what only leads to it needs none.
    """
    nodes = list(walk(*roots, to=given))
    uses = Counter(child for node in nodes for child in node.children)
    named = {expr for _, expr in lets}
    within = [n for n in nodes if level(n) & walked and not indices(n) and not isinstance(n, Const | Var)]
    worthy = {node for node in within if uses[node] > 1 or node in named}
    worthy |= {*long_parts(within, worthy)}
    return [node for node in within if node in worthy and node not in roots and node not in given]


def shared_by_turn(term: Expr, counters: Collection[Index], counter: Index) -> list[Expr]:
    """The nodes of a reduction's term that deserve a name in each turn of its loop: `counter` is that of the loop,
    `counters` are those of the loops around it too.
    """
    nodes = list(walk(term))
    uses = Counter(child for node in nodes for child in node.children)
    within = [n for n in nodes if counter in indices(n) and indices(n) <= {*counters} and not isinstance(n, Index)]
    worthy = {node for node in within if uses[node] > 1}
    worthy |= {*long_parts(within, worthy)}
    return [node for node in within if node in worthy and node is not term]


def places_of(term: Expr) -> list[Expr]:
    """Variables that together differ along the axes of the tile that the term differs along."""
    leaves: list[Expr] = [n for n in walk(term, to=_tile_ends(term)) if isinstance(n, Var) and level(n)]
    whole = [leaf for leaf in leaves if level(leaf) == level(term)]
    if whole:
        return whole[:1]
    along = {axis: next((leaf for leaf in leaves if level(leaf) == axis), K_FIRST) for axis in (ROW, COL)}
    return [along[axis] for axis in (ROW, COL) if axis <= level(term)]


def _tile_ends(term: Expr) -> list[Expr]:
    return [node for node in walk(term) if is_reduction(node)]


def floats_at_leaves(root: Expr, ranges: Ranges) -> Expr:
    """Turn integers into floats before pair-by-pair arithmetic where float32 holds every step exactly.

    Converting q and k costs one conversion a row and a column; converting q - k costs one a pair.
    """

    def is_exact(node: Expr) -> Generator[Expr, bool, bool]:
        if not ranges.exact_in_float32(node):
            return False
        if level(node) != PAIR or not isinstance(node, Op):
            return True
        for argument in node.args if node.name in _WITHOUT_ROUNDING else ():
            if not (yield argument):
                return False
        return node.name in _WITHOUT_ROUNDING

    def as_float(node: Expr) -> Generator[Expr, Expr, Expr]:
        if level(node) != PAIR or not isinstance(node, Op):
            return const(float(node.value)) if isinstance(node, Const) else op("to_float", node)
        operands = []
        for argument in node.args:
            operands.append((yield argument))
        return op(node.name, *operands)

    exact, pushed = Recursion(is_exact), Recursion(as_float)

    def rule(node: Expr) -> Expr:
        if isinstance(node, Op) and node.name == "to_float" and node.args[0].type is Type.INT and exact(node.args[0]):
            return pushed(node.args[0])
        return node

    return transform(root, rule)
