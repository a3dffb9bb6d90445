"""Attention in eager PyTorch around a variant's formula: what a generated `reference` runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from flashgen.runtime.dropout import without_dropped

# formula(score, b, h, kv_h, q, k) -> (score, mask), all broadcasting to [batch, heads, q_len, kv_len].
Formula = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]


def eager_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, formula: Formula, *, bottom_right: bool, scale: float | None,
    return_lse: bool, return_max: bool = False, sinks: torch.Tensor | None = None, kept: torch.Tensor | None = None,
    dropout_p: float = 0,
) -> torch.Tensor | tuple[torch.Tensor, ...]:  # fmt: skip
    """softmax(score over visible keys) @ v, the whole score matrix in memory.

    Shapes as attention() takes them; k and v of batch 1 serve every batch element. All of it runs in float32, or in
    float64 where q is: only out is rounded to the dtype of q. A pair whose score comes out as minus infinity is hidden,
    as if masked. A row that sees no key gives 0, a log-sum-exp and a largest score of minus infinity and no gradients.
    With `kept`, bool [batch, heads, q_len, kv_len], the weights of other pairs are dropped, and these are scaled by
    1 / (1 - dropout_p).
    """
    batch, heads, q_len, head_dim = q.shape
    kv_heads, kv_len = k.shape[1:3]
    group = heads // kv_heads
    wide = torch.promote_types(q.dtype, torch.float32)
    k, v = (tensor.to(wide).repeat_interleave(group, 1) for tensor in (k, v))
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    product = q.to(wide) @ k.transpose(-1, -2) * scale

    b = torch.arange(batch, device=q.device)[:, None, None, None]
    h = torch.arange(heads, device=q.device)[None, :, None, None]
    q_position = torch.arange(q_len, device=q.device)[:, None] + (kv_len - q_len if bottom_right else 0)
    k_position = torch.arange(kv_len, device=q.device)[None, :]
    places = [b, h, h // group, q_position, k_position]
    if not product.numel():
        # No pair reads anything, of inputs without an element either.
        places = [each.expand(product.shape) for each in places]
    score, mask = formula(product, *places)
    score = score.to(wide).expand(batch, heads, q_len, kv_len)
    hidden = score == -math.inf if mask is None else ~mask | (score == -math.inf)
    if score.requires_grad and score is not product:
        score = _without_hidden(score, product, formula, places, hidden)
    score = score.masked_fill(hidden, -math.inf)
    sink = None if sinks is None else sinks.to(wide)[None, :, None].expand(batch, heads, q_len)
    weights, lse = _softmax(score, hidden.all(-1), sink)
    out = without_dropped(weights, kept, dropout_p) @ v
    found = (out.to(q.dtype), *((lse,) if return_lse else ()), *((_largest(score),) if return_max else ()))
    return found if len(found) > 1 else found[0]


def _without_hidden(
    score: torch.Tensor, product: torch.Tensor, formula: Formula, places: Sequence[torch.Tensor], hidden: torch.Tensor
) -> torch.Tensor:
    """The same scores where what is hidden has no gradient, also where the formula's derivative is infinite or NaN.

    What comes down to an input of the formula is a sum over pairs: for these it is evaluated again, of the seen alone.
    """
    if formula(product.detach(), *places)[0].requires_grad:
        at = (~hidden).nonzero(as_tuple=True)
        seen = formula(product[at], *(each.expand(product.shape)[at] for each in places))[0]
        return product.new_full(product.shape, -math.inf).index_put(at, seen.to(product.dtype).expand(len(at[0])))
    if product.requires_grad:
        product.register_hook(lambda gradient: gradient.masked_fill(hidden, 0))
    return score


def _largest(score: torch.Tensor) -> torch.Tensor:
    """Each row's largest score, without gradients; minus infinity where there is none."""
    return score.detach().amax(-1) if score.shape[-1] else score.new_full(score.shape[:-1], -math.inf)


def _softmax(score: torch.Tensor, empty: torch.Tensor, sink: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row's weights, and its log-sum-exp; 0 and minus infinity where the row is `empty`.

    Relative to the row's largest score, as every sound softmax: exp(score - lse) would lose what is small beside lse.
    """
    if not score.shape[-1]:
        return score, score.new_full(empty.shape, -math.inf)
    top = _largest(score)
    if sink is not None:
        top = torch.maximum(top, sink.detach())
    top = top.masked_fill(empty, 0)
    weights = torch.exp(score - top[..., None])
    total = weights.sum(-1)
    if sink is not None:
        total = total + torch.exp(sink - top)
    total = total.masked_fill(empty, 1)
    return weights / total[..., None], (top + total.log()).masked_fill(empty, -math.inf)
