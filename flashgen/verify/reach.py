"""How long a call must be to show what a variant's integers do: a window of 1023 hides nothing of 200 keys."""

from __future__ import annotations

import math
from collections.abc import Iterator

from flashgen.lang.nodes import COMPARISONS, Const, Expr, Op, Type
from flashgen.lang.traversal import walk
from flashgen.spec.variant import Variant

# Integers from here on reach past most cases; those up to the second get a case that is longer than they are.
SHORTEST_REACH, LONGEST_REACH = 50, 8192


def lengths_past(variant: Variant, few: int) -> dict[str, tuple[int, int]]:
    """Lengths past the variant's largest integer, of queries and keys, by a name of the case; none where it is small.

    `few` queries suffice where they stand at the end of the keys. At the top they must come as far themselves, but then
    few keys do: a score matrix of both takes minutes, and gigabytes.
    """
    reach = _reach(variant)
    if reach < SHORTEST_REACH:
        return {}
    long = 77 + (2 * reach if reach <= 256 else reach)
    if variant.align == "top_left":
        return {f"reach {reach}, along keys": (few, long), f"reach {reach}, along queries": (long, few)}
    return {f"reach {reach}": (few, long)}


def _reach(variant: Variant) -> int:
    """The largest integer of the expressions, the shapes and the runtime params, as far as a case is to pass it."""
    nodes = walk(variant.score, variant.mask, *(dim.size for tensor in variant.inputs for dim in tensor.dims))
    integers = [size for node in nodes for size in _sizes(node)]
    integers += [abs(param.value) for param in variant.runtime_params if type(param.value) is int]
    return max((n for n in integers if n <= LONGEST_REACH), default=0)


def _sizes(node: Expr) -> Iterator[int]:
    """What a node says of how far positions are told apart: k // 1024, k >> 10, floor(k / 1024), k < 1024.0."""
    if isinstance(node, Const) and type(node.value) is int:
        yield abs(node.value)
    elif isinstance(node, Op) and node.name == "shr" and isinstance(node.args[1], Const):
        yield 1 << min(max(int(node.args[1].value), 0), 63)
    elif isinstance(node, Op) and (node.name == "floor" or node.name in COMPARISONS):
        floats = (part.value for part in walk(*node.args) if isinstance(part, Const) and part.type is Type.FLOAT)
        yield from (math.ceil(abs(value)) for value in floats if math.isfinite(value))
