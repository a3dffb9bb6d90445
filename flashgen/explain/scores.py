"""What a variant does to scores, evaluated: what it adds to each pair, and where it bends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from flashgen.explain.tiles import TileMap

if TYPE_CHECKING:
    from torch import Tensor

Score = Callable[["Tensor", "Tensor", "Tensor", "Tensor", "Tensor"], "Tensor"]
# The function for one head, whose inputs suit that one alone.
ScoreOf = Callable[[int], Score]

# Heads and pairs to look at, points of a curve.
HEADS, PAIRS, POINTS = 4, 3, 129
# Scores at most this far from 0 are tried, from the first on, until half of what comes out is the modification's.
LEAST_REACH, GREATEST_REACH = 8, 1024
# What is smaller than this, as a share of the scores, is rounding.
ROUNDING = 1e-5


@dataclass(frozen=True)
class Bend:
    """How a score is changed at one pair of a head: `raw` scores [points] and what becomes of them, float32.

    `head` and `pair` (query, key) are None where it is the same for every head, for every pair.
    """

    head: int | None
    pair: tuple[int, int] | None
    raw: np.ndarray
    score: np.ndarray

    @property
    def label(self) -> str:
        head = "every head" if self.head is None else f"head {self.head}"
        return head if self.pair is None else f"{head}, query {self.pair[0]}, key {self.pair[1]}"


@dataclass(frozen=True)
class Added:
    """What is added to a score of 0 in each cell [q_cells, kv_cells] of a head, NaN where nothing is visible.

    `head` is None where it is the same for every head.
    """

    head: int | None
    values: np.ndarray

    @property
    def label(self) -> str:
        return "every head" if self.head is None else f"head {self.head}"


@dataclass(frozen=True)
class ScorePanel:
    """`added` is empty where a score of 0 stays 0, `bends` where the same is added to every score."""

    title: str
    q_len: int
    kv_len: int
    added: tuple[Added, ...]
    bends: tuple[Bend, ...]

    @property
    def span(self) -> tuple[float, float]:
        """The least and the greatest value that is added to a visible pair."""
        values = np.concatenate([each.values.ravel() for each in self.added])
        values = values[np.isfinite(values)]
        return (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)


def look_at(title: str, score_of: ScoreOf, cells: TileMap, heads: int) -> ScorePanel:
    """Evaluate a score modification at the middle of every cell that has a visible pair, for a few of the heads."""
    chosen = sorted({round(i * (heads - 1) / (HEADS - 1)) for i in range(HEADS)})
    return ScorePanel(
        title, cells.q_len, cells.kv_len, _added(score_of, cells, chosen), _bends(score_of, cells, chosen)
    )


def _added(score_of: ScoreOf, cells: TileMap, heads: list[int]) -> tuple[Added, ...]:
    q, k = (
        np.minimum(np.arange(n) * size + size // 2, length - 1)
        for n, size, length in zip(cells.counts.shape, (cells.BM, cells.BN), (cells.q_len, cells.kv_len), strict=True)
    )
    values = _evaluate(score_of, np.zeros(()), heads, q[:, None], k[None, :])
    values = np.where(cells.none, np.nan, values)
    if not np.nan_to_num(values).any():
        return ()
    alike = all(np.array_equal(each, values[0], equal_nan=True) for each in values)
    return (Added(None, values[0]),) if alike else tuple(map(Added, heads, values))


def _bends(score_of: ScoreOf, cells: TileMap, heads: list[int]) -> tuple[Bend, ...]:
    pairs = _pairs(cells)
    q, k = (np.array(each)[:, None] for each in zip(*pairs, strict=True))
    reach = LEAST_REACH
    while reach < GREATEST_REACH and not _departs(score_of, heads, q, k, reach):
        reach *= 2
    if reach == GREATEST_REACH:
        reach = LEAST_REACH
    raw = np.linspace(-reach, reach, POINTS)
    changed = _evaluate(score_of, raw, heads, q, k)
    added = changed - raw
    if not (np.ptp(np.nan_to_num(added), axis=-1) > ROUNDING * reach).any():
        return ()
    near = partial(np.allclose, rtol=0, atol=ROUNDING * reach, equal_nan=True)
    if all(near(each, changed[0, 0]) for head in changed for each in head):
        return (Bend(None, None, raw, changed[0, 0]),)
    if all(near(head, changed[0]) for head in changed):
        return tuple(Bend(None, pair, raw, curve) for pair, curve in zip(pairs, changed[0], strict=True))
    middle = len(pairs) // 2
    return tuple(Bend(head, pairs[middle], raw, each[middle]) for head, each in zip(heads, changed, strict=True))


def _departs(score_of: ScoreOf, heads: list[int], q: np.ndarray, k: np.ndarray, reach: int) -> bool:
    """Whether at each pair a score of this size comes out by half of it, or more, away from the line through 0."""
    changed = _evaluate(score_of, np.array([-reach, 0.0, reach]), heads, q, k)
    away = np.abs(changed - changed[..., 1:2] - np.array([-reach, 0.0, reach]))
    return bool((away > reach / 2).any(axis=-1).all())


def _pairs(cells: TileMap) -> list[tuple[int, int]]:
    """Pairs (query, key) of the lowest cells that have a visible one: the first key, one between, the last."""
    seen = np.flatnonzero(~cells.none.all(axis=1))
    row = int(seen[-1]) if seen.size else 0
    columns = np.flatnonzero(~cells.none[row])
    columns = columns if columns.size else np.zeros(1, int)
    places = columns[np.linspace(0, len(columns) - 1, PAIRS).round().astype(int)]
    q = min(row * cells.BM + cells.BM // 2, cells.q_len - 1)
    keys = [min(int(place) * cells.BN + cells.BN // 2, cells.kv_len - 1) for place in places]
    return [(q, k) for k in dict.fromkeys(keys)]


def _evaluate(score_of: ScoreOf, raw: np.ndarray, heads: list[int], q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """The modified scores [heads, ...] of the first batch element, over what raw, q and k broadcast to; NaN: hidden."""
    import torch

    shape = np.broadcast_shapes(raw.shape, q.shape, k.shape)
    scores, places = torch.tensor(raw, dtype=torch.float32), (torch.from_numpy(q), torch.from_numpy(k))
    values = [score_of(head)(scores, torch.tensor(0), torch.tensor(head), *places).expand(shape) for head in heads]
    found = torch.stack(values).double().numpy()
    return np.where(np.isfinite(found), found, np.nan)
