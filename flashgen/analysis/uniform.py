"""Tiles all of whose pairs read an input at one place, as far from the diagonal of a clamped relative bias."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from flashgen.lang.evaluate import Value, evaluator
from flashgen.lang.fold import fold
from flashgen.lang.intervals import Ranges
from flashgen.lang.learned import steps_with_each
from flashgen.lang.nodes import TRUE, Expr, Gather, op
from flashgen.lang.places import one_place
from flashgen.lang.traversal import indices, inputs, substitute, transform, variables, walk
from flashgen.lang.variables import K_FIRST, Q_FIRST, K, Q
from flashgen.spec.variant import Variant

# A long sequence, and what sizes that a call decides may be there.
_LENGTH, _OTHERS = 8192, 128
_SIZES = {"b": 0, "h": 1, "kv_h": 0, "batch": 2, "heads": 16, "kv_heads": 4, "head_dim": 128}
# Rows of a consumer and keys of a tile, and how far apart the tiles are that are looked at.
_ROWS, _KEYS, _STEP = 64, 128, (1024, 256)


@dataclass(frozen=True)
class Uniform:
    """`reads` are what differs from pair to pair, but is one element in tiles of which `condition` holds: it is of
    their corners, q_first, q_last, k_first and k_last. `share` is that of such tiles in a long sequence, without those
    that are mixed.
    """

    condition: Expr
    reads: tuple[Gather, ...]
    share: float

    def in_tile(self, logit: Expr) -> Expr:
        """The logit in such a tile: each element is that of the tile's first pair."""
        return transform(logit, lambda node: _of_first_pair(node) if node in self.reads else node)


def uniform_of(variant: Variant, logit: Expr, ranges: Ranges) -> Uniform | None:
    """None where a tile's corners do not say it of all that the logit reads by pairs, or where it reads nothing."""
    reads = tuple(node for node in walk(logit) if isinstance(node, Gather) and {"q", "k"} <= variables(node))
    if not reads or any(steps_with_each(read) or indices(read) for read in reads):
        return None
    sizes = {tensor.name: [dim.size for dim in tensor.dims] for tensor in variant.inputs}
    condition: Expr = TRUE
    for read in reads:
        place = one_place([ranges.kept_inside(read, axis, size) for axis, size in enumerate(sizes[read.input])])
        if place is None or inputs(place):
            return None
        condition = op("and", condition, place)
    condition = fold(condition)
    return _counted(variant, Uniform(condition, reads, 0.0))


def _counted(variant: Variant, found: Uniform) -> Uniform | None:
    """With the share; None where no tile with visible pairs is one."""
    holds, seen_by_tile = evaluator(found.condition), _seen(variant)
    tiles = [(tile, seen) for tile in _tiles(variant) if any(seen := seen_by_tile(tile))]
    uniform = [seen for tile, seen in tiles if holds(tile, {})]
    return replace(found, share=sum(map(all, uniform)) / len(tiles)) if uniform else None


def _seen(variant: Variant) -> Callable[[dict[str, Value]], list[bool]]:
    """Which of some pairs of a tile the mask shows; one that reads inputs may show them all."""
    if inputs(variant.mask):
        return lambda tile: [True]
    shows = evaluator(variant.mask)
    pairs = [(q, k) for q in (0, _ROWS // 2, _ROWS - 1) for k in (0, _KEYS // 2, _KEYS - 1)]
    return lambda tile: [bool(shows(tile | {"q": tile["q_first"] + q, "k": tile["k_first"] + k}, {})) for q, k in pairs]


def _tiles(variant: Variant) -> Iterator[dict[str, Value]]:
    sizes = {**_SIZES, "q_len": _LENGTH, "kv_len": _LENGTH, **dict.fromkeys(variant.dim_names, _OTHERS)}
    known = sizes | {param.name: param.value for param in variant.runtime_params}
    for q_first in range(0, _LENGTH, _STEP[0]):
        for k_first in range(0, _LENGTH, _STEP[1]):
            corners = (q_first, q_first + _ROWS - 1, k_first, k_first + _KEYS - 1)
            yield known | dict(zip(("q_first", "q_last", "k_first", "k_last"), corners, strict=True))


def _of_first_pair(read: Expr) -> Expr:
    return fold(substitute(read, {Q: Q_FIRST, K: K_FIRST}))
