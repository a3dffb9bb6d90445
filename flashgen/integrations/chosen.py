"""Keys that a layer chooses for each query: one by one, or in blocks."""

from __future__ import annotations

from typing import Any

import torch

from flashgen.errors import ModelError


def among(mask: torch.Tensor | None, indices: torch.Tensor, kv_len: int) -> torch.Tensor:
    """A mask that hides from each query all but these keys, int [batch, q_len, n]."""
    if mask is None or mask.shape[-1] != kv_len:
        raise ModelError(
            "indices came to a layer without a mask of queries by keys, which says what they are among; expected "
            "attention 'eager'"
        )
    chosen = torch.zeros((*indices.shape[:2], kv_len), dtype=torch.bool, device=indices.device)
    chosen = chosen.scatter(-1, indices.long(), True)[:, None]
    return mask & chosen if mask.dtype == torch.bool else mask.masked_fill(~chosen, torch.finfo(mask.dtype).min)


def chosen_blocks(module: torch.nn.Module, indices: torch.Tensor, key: torch.Tensor) -> dict[str, Any]:
    """What a variant is told of the blocks of keys that each query sees.

    indices, int [batch, kv_heads, q_len, n]: numbers of blocks, -1 in the place of none. How many keys a block has, the
    layer's indexer says, as transformers' own kernels ask it.
    """
    size = getattr(getattr(module, "indexer", None), "block_size", None)
    batch, kv_heads, kv_len = key.shape[:3]
    if size is None or indices.ndim != 4 or (indices.shape[0], indices.shape[1]) != (batch, kv_heads):
        raise ModelError(
            f"block_indices came with shape {tuple(indices.shape)} to a layer whose indexer has block_size {size}; "
            f"expected [{batch}, {kv_heads}, q_len, n], for batch and kv_heads, and a size; else attention 'eager'"
        )
    number = -(-kv_len // size)
    # One more for those that are none.
    chosen = torch.zeros((*indices.shape[:3], number + 1), dtype=torch.bool, device=indices.device)
    chosen = chosen.scatter(-1, indices.long().remainder(number + 1), True)
    return {"chosen": chosen[..., :number], "block_size": size}
