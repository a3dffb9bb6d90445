"""The sizes of one call, whatever its form."""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.problems.lengths import spread


@dataclass(frozen=True)
class Problem:
    """The sizes of one call. `dtype` is that of q, k and v.

    `mode` is the form of call: "dense", "decode" (few queries), "paged" or "varlen" (packed sequences). A paged cache
    has `block_size` keys a page, and `cache` is its dtype, "" for that of q. Packed sequences have from `min_len` to
    `q_len` queries, and as many keys.
    """

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    v_head_dim: int
    dtype: str
    mode: str = "dense"
    block_size: int = 0
    cache: str = ""
    min_len: int = 0

    @property
    def packed(self) -> bool:
        """Whether sequences are packed."""
        return self.mode == "varlen"

    @property
    def lengths(self) -> tuple[tuple[int, int], ...]:
        """The numbers of queries and keys of each packed sequence."""
        return tuple((length, length) for length in spread(self.batch, self.q_len, self.min_len))

    @property
    def tokens(self) -> tuple[int, int]:
        """The queries and the keys of all sequences."""
        if not self.packed:
            return self.batch * self.q_len, self.batch * self.kv_len
        queries, keys = zip(*self.lengths, strict=True)
        return sum(queries), sum(keys)

    def __str__(self) -> str:
        heads = f"{self.heads}/{self.kv_heads}" if self.heads != self.kv_heads else f"{self.heads}"
        dims = f"{self.head_dim}" if self.head_dim == self.v_head_dim else f"{self.head_dim}/{self.v_head_dim}"
        pages = f", pages of {self.block_size}" if self.block_size else ""
        cache = f" in {self.cache}" if self.cache else ""
        lengths = f"packed S{self.min_len}-{self.q_len}" if self.packed else f"S{self.q_len}x{self.kv_len}"
        return f"B{self.batch} H{heads} {lengths} D{dims} {self.dtype}{pages}{cache}"
