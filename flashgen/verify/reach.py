"""How long a call must be to show what a variant's integers do: a window of 1023 hides nothing of 200 keys."""

from __future__ import annotations

from flashgen.lang.nodes import Const
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
    shapes = [dim.size for tensor in variant.inputs for dim in tensor.dims]
    constants = [node.value for node in walk(variant.score, variant.mask, *shapes) if isinstance(node, Const)]
    integers = [abs(n) for n in (*constants, *(p.value for p in variant.runtime_params)) if type(n) is int]
    return max((n for n in integers if n <= LONGEST_REACH), default=0)
