"""Attention in eager PyTorch around a variant's formula: what a generated `reference` runs."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

# formula(score, b, h, kv_h, q, k) -> (score, mask), all broadcasting to [batch, heads, q_len, kv_len].
Formula = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]


def eager_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, formula: Formula, *, bottom_right: bool, scale: float | None,
    return_lse: bool, sinks: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """softmax(score over visible keys) @ v, the whole score matrix in memory.

    Shapes as attention() takes them. Products run in the dtype of q; the scores and the softmax in float32, or in
    float64 where q is. A row that sees no key gives 0 and a log-sum-exp of minus infinity.
    """
    batch, heads, q_len, head_dim = q.shape
    kv_heads, kv_len = k.shape[1:3]
    group = heads // kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    score = (q @ k.transpose(-1, -2)).to(torch.promote_types(q.dtype, torch.float32)) * scale

    b = torch.arange(batch, device=q.device)[:, None, None, None]
    h = torch.arange(heads, device=q.device)[None, :, None, None]
    q_position = torch.arange(q_len, device=q.device)[:, None] + (kv_len - q_len if bottom_right else 0)
    k_position = torch.arange(kv_len, device=q.device)[None, :]
    product = score
    score, mask = formula(product, b, h, h // group, q_position, k_position)
    modified = score is not product
    score = score.to(torch.promote_types(q.dtype, torch.float32)).expand(batch, heads, q_len, kv_len)
    if mask is not None:
        score = score.masked_fill(~mask, -math.inf)
        if modified and product.requires_grad:
            # What is hidden has no gradient, also where the formula's derivative there is infinite or NaN.
            product.register_hook(lambda gradient: gradient.masked_fill(~mask, 0))
    lse = score.logsumexp(-1)
    empty = lse == -math.inf
    total = lse if sinks is None else torch.logaddexp(lse, sinks.to(lse.dtype)[None, :, None])
    weights = torch.exp(score - total.masked_fill(empty, 0)[..., None])
    out = weights.to(v.dtype) @ v
    if sinks is not None:
        lse = total.masked_fill(empty, -math.inf)
    return (out, lse) if return_lse else out
