"""Inputs that are read for each pair in rows: elements of neighbouring keys lie side by side."""

from __future__ import annotations

from flashgen.analysis.facts import Facts
from flashgen.analysis.levels import COL, PAIR, level
from flashgen.lang.nodes import Expr, Gather
from flashgen.lang.traversal import indices, walk
from flashgen.lang.variables import BATCH, Q_FIRST, K


def rows_of_pairs(facts: Facts) -> tuple[Gather, ...]:
    """What the logit and its derivative read so, as bias[h, q, k] or bias[b, q % 4, k], from one row at a query."""
    roots = (facts.logits.pair, *([facts.slope] if facts.nonlinear else []))
    return tuple(node for node in walk(*roots) if isinstance(node, Gather) and _is_in_rows(facts, node))


def _is_in_rows(facts: Facts, read: Gather) -> bool:
    if level(read) != PAIR or indices(read) or Q_FIRST in walk(read):
        return False
    *rows, _ = read.indices
    return _at_key(facts, read) and not any(level(node) & COL or _is_read_there(node) for node in walk(*rows))


def _at_key(facts: Facts, read: Gather) -> bool:
    """Whether the last index is the key itself, which lies inside the dimension."""
    sizes = facts.sizes_of(read)
    return sizes[-1] is not BATCH and facts.ranges.kept_inside(read, len(sizes) - 1, sizes[-1]) is K


def _is_read_there(node: Expr) -> bool:
    """Whether an index of a row is itself read for each row."""
    return isinstance(node, Gather) and bool(level(node))
