"""Attention as the model asks for it: over the paged cache of an engine, and dense, of one sequence alone."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from engine.model import Attend, Attention
from flashgen.runtime import serving


class Paged:
    """`Attend` of one step, for many sequences packed one after the other.

    `caches` has k and v [num_blocks, block_size, kv_heads, head_dim] of each layer. Without `cu_seqlens_q` each
    sequence has one query. Layers of one variant share a plan, which the first of them makes.
    """

    def __init__(
        self, caches: Sequence[tuple[Tensor, Tensor]], slots: Tensor, block_table: Tensor, seq_lens: Tensor,
        cu_seqlens_q: Tensor | None = None, max_seqlen_q: int = 1,
    ) -> None:  # fmt: skip
        self.caches, self.slots, self.lengths = caches, slots, (block_table, seq_lens)
        self.queries = {"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": max_seqlen_q}
        self.plans: dict[ModuleType, Any] = {}

    def __call__(self, attention: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k_cache, v_cache = self.caches[attention.layer]
        serving.store_kv(k, v, k_cache, v_cache, self.slots)
        variant = attention.variant
        if variant not in self.plans:
            self.plans[variant] = variant.plan_paged(q, k_cache, *self.lengths, **self.queries)
        plan = self.plans[variant]
        return variant.attention_paged(
            q, k_cache, v_cache, *self.lengths, **self.queries, **attention.inputs, plan=plan
        )


def dense(cache: torch.dtype, exact: bool = False) -> Attend:
    """`Attend` of one whole sequence; `exact` is by the formula in eager PyTorch.

    k and v are rounded as a cache of this dtype rounds them.
    """

    def attend(attention: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (as_stored(tensor, cache) for tensor in (k, v))
        q, k, v = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))  # [1, heads, tokens, head_dim]
        function = attention.variant.reference if exact else attention.variant.attention
        return function(q, k, v, **attention.inputs)[0].transpose(0, 1)

    return attend


def as_stored(tensor: Tensor, cache: torch.dtype) -> Tensor:
    """What attention reads of a tensor that `store_kv` has written to a cache of this dtype."""
    if cache.itemsize > 1:
        return tensor
    most = torch.finfo(cache).max
    return tensor.clamp(-most, most).to(cache).to(tensor.dtype)
