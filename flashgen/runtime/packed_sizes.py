"""The sizes of a call over packed sequences, whose own lengths the host does not know."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from flashgen.runtime.arguments import check_longest
from flashgen.runtime.bounded_cache import remember
from flashgen.runtime.call import Call, Layout
from flashgen.runtime.sizes import Sizes


@dataclass(frozen=True)
class VarlenSizes(Sizes):
    """Of `batch` sequences: q_len and kv_len are the longest lengths, total_q and total_k those of all together."""

    total_q: int
    total_k: int

    @property
    def packed(self) -> bool:
        return True

    @property
    def tokens(self) -> int:
        return max(1, self.total_q)

    @property
    def numbers(self) -> Mapping[str, int | None]:
        return {**vars(self), "num_seqs": self.batch}

    @property
    def rows(self) -> tuple[int, int, int]:
        return 1, self.heads, self.total_q

    def keys_of(self, heads: int) -> tuple[int, int, int]:
        return 1, heads, self.total_k

    def query_tiles(self, BM: int) -> int:
        """Slots as runtime/device/packed.py has them."""
        return (self.total_q // BM + self.batch + 1) * self.heads

    def key_tiles(self, BN: int, heads: int) -> int:
        return (self.total_k // BN + self.batch + 1) * heads


def packed_sizes(sizes: Sizes, inputs: Sequence[torch.Tensor | None], params: Mapping[str, Any]) -> VarlenSizes:
    """From those of the tensors, [1, heads, total, dim]; cu_seqlens_q is the first input."""
    cu_seqlens_q = inputs[0]
    assert cu_seqlens_q is not None
    return VarlenSizes(
        cu_seqlens_q.shape[0] - 1,
        sizes.heads,
        sizes.kv_heads,
        params["max_seqlen_q"],
        params["max_seqlen_k"],
        sizes.head_dim,
        sizes.v_head_dim,
        sizes.q_len,
        sizes.kv_len,
    )


_layouts: dict[Hashable, Layout] = {}


def packed_call(call: Call, inputs: Sequence[torch.Tensor | None], params: Mapping[str, Any]) -> Call:
    """A call of tensors [1, heads, total, dim] as one over packed sequences; ValueError for lengths out of range."""
    sizes = packed_sizes(call.sizes, inputs, params)
    layout = _layouts.get((call.layout, sizes))
    if layout is None:
        check_longest(max_seqlen_q=sizes.q_len, max_seqlen_k=sizes.kv_len)
        layout = replace(call.layout, sizes=sizes)
        remember(_layouts, (call.layout, sizes), layout)
    return call._replace(layout=layout)
