"""What a spec means, in words and as a picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from flashgen.codegen import uses_schedule
from flashgen.codegen.pairwise import SIZES, Pairwise, make
from flashgen.errors import UsageError
from flashgen.explain.configs import Used, used_configs
from flashgen.explain.describe import Explanation, describe
from flashgen.explain.inputs import Inputs
from flashgen.explain.picture import Panel
from flashgen.explain.scores import ScorePanel, look_at
from flashgen.explain.tiles import count
from flashgen.lang.nodes import Expr
from flashgen.lang.traversal import inputs
from flashgen.problems.elements import empty_dims
from flashgen.problems.problem import Problem
from flashgen.spec.variant import Variant

__all__ = ["Explained", "explain", "picture_of", "score_picture_of"]

# Cells along a side of the picture, and the tile whose skipping it shows.
CELLS = 256
PICTURE_LENGTH = 4096
TILE_Q, TILE_KV = 128, 64


@dataclass(frozen=True)
class Explained:
    """`panel` shows the mask of the first batch and head on random inputs, `configs` what this machine would use.

    `score_panel` shows what becomes of scores, where that was asked for.
    """

    explanation: Explanation
    configs: tuple[Used, ...]
    panel: Panel
    score_panel: ScorePanel | None = None


def explain(variant: Variant, out: Path, length: int | None = None, seed: int = 0, score: bool = False) -> Explained:
    """Explain a variant. `out` is the folder of its module, `length` the number of queries and keys of its picture.

    `seed` draws the inputs of the picture; `score` asks for that of the score modification.
    """
    explanation = describe(variant, uses_schedule(variant))
    panel = picture_of(variant, length or PICTURE_LENGTH, seed)
    score_panel = score_picture_of(variant, panel, seed) if score else None
    return Explained(explanation, used_configs(variant, out), panel, score_panel)


def picture_of(variant: Variant, length: int, seed: int = 0, BM: int = TILE_Q, BN: int = TILE_KV) -> Panel:
    """Evaluate the mask on every pair of a problem with random inputs, cell by cell and tile by tile."""
    mask = _pairwise(variant, variant.mask, length, seed)(0).mask
    cell = -(-length // CELLS)
    return Panel(variant.name, count(mask, length, length, cell, cell), count(mask, length, length, BM, BN))


def score_picture_of(variant: Variant, panel: Panel, seed: int = 0) -> ScorePanel:
    """Evaluate the score modification for a few heads, where the panel of the mask has visible pairs.

    `seed` draws the inputs, the same as for the panel.
    """
    of_head = _pairwise(variant, variant.score, panel.cells.q_len, seed)
    return look_at(variant.name, lambda head: of_head(head).score, panel.cells, variant.tune_shapes[0].heads)


def _pairwise(variant: Variant, shown: Expr, length: int, seed: int) -> Callable[[int], Pairwise]:
    """By head, the variant's two functions for a problem of this length with random inputs, for the one that is shown.

    UsageError where what it reads has no element at this length.
    """
    shape = variant.tune_shapes[0]
    dim = variant.head_dims[0]
    problem = Problem(1, shape.heads, shape.kv_heads, length, length, dim, dim, variant.dtypes[0])
    for tensor, empty in empty_dims(variant, problem):
        if tensor.name in inputs(shown):
            raise UsageError(
                f"the input {tensor.name} has no element at {length} queries and keys, by its dimension {empty.text}; "
                "expected a length at which it comes to 1 or more"
            )
    drawn = Inputs(variant, problem, seed)
    sizes = {name: getattr(problem, name) for name in SIZES}
    return cache(lambda head: make(variant, sizes, drawn.of(shown, head)))
