"""The sizes of a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# What kernels that serve packed sequences too are given of where these are, where sequences are dense.
DENSE = dict.fromkeys(("cu_seqlens_q_ptr", "cu_seqlens_k_ptr", "num_seqs", "total_q", "total_k", "order_ptr"))


@dataclass(frozen=True)
class Sizes:
    """The sizes of one call: q [batch, heads, q_len, head_dim], k and v over kv_heads and kv_len."""

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    v_head_dim: int

    @property
    def packed(self) -> bool:
        """Whether sequences lie one after the other in tensors of batch 1."""
        return False

    @property
    def tokens(self) -> int:
        """Queries of all packed sequences together; 0 where none are packed."""
        return 0

    @property
    def numbers(self) -> Mapping[str, int | None]:
        """All that kernels are told of them, by the names of their parameters."""
        return {**vars(self), **DENSE}

    @property
    def rows(self) -> tuple[int, int, int]:
        """The shape of what there is for each row of queries."""
        return self.batch, self.heads, self.q_len

    def keys_of(self, heads: int) -> tuple[int, int, int]:
        """The shape of what there is for each key of so many heads."""
        return self.batch, heads, self.kv_len

    def query_tiles(self, BM: int) -> int:
        """Programs that own a tile of queries."""
        return -(-self.q_len // BM) * self.batch * self.heads

    def key_tiles(self, BN: int, heads: int) -> int:
        """Programs that own a tile of keys of so many heads."""
        return -(-self.kv_len // BN) * self.batch * heads
