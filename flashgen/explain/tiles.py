"""What a mask leaves of each tile of a (query, key) problem, counted pair by pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Mask = Callable[["Tensor", "Tensor", "Tensor", "Tensor"], "Tensor"]


@dataclass(frozen=True)
class TileMap:
    """`counts` [q_tiles, kv_tiles]: visible pairs of each tile of BM queries by BN keys, of one batch and head."""

    q_len: int
    kv_len: int
    BM: int
    BN: int
    counts: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """Pairs of each tile [q_tiles, kv_tiles]: fewer at the ragged edges."""
        rows = np.minimum(self.BM, self.q_len - np.arange(0, self.q_len, self.BM))
        columns = np.minimum(self.BN, self.kv_len - np.arange(0, self.kv_len, self.BN))
        return rows[:, None] * columns[None, :]

    @property
    def none(self) -> np.ndarray:
        return self.counts == 0

    @property
    def full(self) -> np.ndarray:
        return self.counts == self.sizes

    @property
    def mixed(self) -> np.ndarray:
        return ~self.none & ~self.full

    @property
    def fill(self) -> np.ndarray:
        """The visible share of each tile."""
        return self.counts / self.sizes

    @property
    def density(self) -> float:
        """The visible share of all pairs."""
        return float(self.counts.sum()) / (self.q_len * self.kv_len)

    def merged(self, rows: int, columns: int) -> TileMap:
        """The map whose tiles are `rows` by `columns` of these."""
        q_starts, kv_starts = (np.arange(0, n, m) for n, m in zip(self.counts.shape, (rows, columns), strict=True))
        counts = np.add.reduceat(np.add.reduceat(self.counts, q_starts, axis=0), kv_starts, axis=1)
        return TileMap(self.q_len, self.kv_len, rows * self.BM, columns * self.BN, counts)


def count(mask: Mask, q_len: int, kv_len: int, BM: int, BN: int, b: int = 0, h: int = 0) -> TileMap:
    """Evaluate the mask on every pair of one batch and head; memory grows with BM * kv_len alone."""
    import torch

    batch, head = torch.tensor(b), torch.tensor(h)
    k = torch.arange(kv_len)[None, :]
    rows = []
    for start in range(0, q_len, BM):
        q = torch.arange(start, min(start + BM, q_len))[:, None]
        visible = mask(batch, head, q, k).expand(len(q), kv_len)
        columns = visible.sum(dim=0, dtype=torch.int64).numpy()
        rows.append(np.add.reduceat(columns, np.arange(0, kv_len, BN)))
    return TileMap(q_len, kv_len, BM, BN, np.stack(rows))
