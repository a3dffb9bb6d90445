"""Attention in eager PyTorch around a variant's formula: what a generated `reference` runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from flashgen.runtime.arguments import DTYPES, agreeing_sizes, check_scalar, check_types, fitting_input, scale_of
from flashgen.runtime.autocast import autocast
from flashgen.runtime.conversions import as_dtype, over_batch
from flashgen.runtime.declared import Input
from flashgen.runtime.dispatch import is_real, is_transformed
from flashgen.runtime.dropout import without_dropped
from flashgen.runtime.own_arguments import check_inputs
from flashgen.runtime.sizes import Sizes
from flashgen.runtime.variant import Variant

# formula(score, b, h, kv_h, q, k) -> (score, mask), all broadcasting to [batch, heads, q_len, kv_len].
Formula = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]


def check_reference(
    variant: Variant, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, inputs: Sequence[torch.Tensor | None] = (),
    params: Sequence[Any] = (), *, scale: float | None,
) -> None:  # fmt: skip
    """Refuse what attention() refuses, in the same words, but for what kernels alone cannot do.

    So it may be float64, of any head_dim, and inputs may be floats of any dtype.
    """
    check_types(q, k, v, scale, None, variant.called, inputs)
    scalars = dict(zip((each.name for each in variant.params), checked_params(variant, *params), strict=False))
    q, k, v = autocast(q, k, v)
    sizes = agreeing_sizes(q, *over_batch(q, k, v), (*DTYPES, torch.float64))
    scale_of(scale, sizes.head_dim)
    if not (q.numel() and sizes.kv_len):
        return  # No pair reads an input.
    declared = [_as_given(each, tensor) for each, tensor in zip(variant.inputs, inputs, strict=True)]
    tensors = [as_dtype(tensor, each.dtype) for each, tensor in zip(declared, inputs, strict=True)]
    check_inputs(declared, q, sizes, tensors, scalars, _as_formulas_read)


def _as_formulas_read(
    declared: Input, given: Any, shape: Sequence[int | None], q: torch.Tensor, sizes: Sizes
) -> torch.Tensor:  # fmt: skip
    """An input that fits. A short sequence of a batch reads those of the longest, also where it alone has nothing."""
    shape = [size if size is None or size > 0 else None for size in shape]
    free = declared.may_be_one, declared.may_be_empty
    return fitting_input(declared.public, given, declared.text, shape, declared.dtype, q, *free)


def _as_given(declared: Input, tensor: torch.Tensor | None) -> Input:
    """The declaration of an input, of the caller's dtype where both are floats."""
    if tensor is None or not (tensor.is_floating_point() and declared.dtype.is_floating_point):
        return declared
    return replace(declared, dtype=tensor.dtype)


def checked_params(variant: Variant, *params: Any) -> tuple[Any, ...]:
    """Runtime params as attention() takes them, in their order; what dropout adds to them comes last, and not here."""
    declared = zip(variant.params, params, strict=False)
    return tuple(check_scalar(each.public, value, each.type) for each, value in declared)


def eager_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, formula: Formula, *, bottom_right: bool, scale: float | None,
    return_lse: bool, return_max: bool = False, sinks: torch.Tensor | None = None, kept: torch.Tensor | None = None,
    dropout_p: float = 0,
) -> torch.Tensor | tuple[torch.Tensor, ...]:  # fmt: skip
    """softmax(score over visible keys) @ v, the whole score matrix in memory.

    Shapes as attention() takes them; k and v of batch 1 serve every batch element. All of it runs in float32, or in
    float64 where q is: only out is rounded to the dtype of q. A pair whose score comes out as minus infinity, in
    float32, is hidden, as if masked. A row that sees no key gives 0, a log-sum-exp and a largest score of minus
    infinity and no gradients. With `kept`, bool [batch, heads, q_len, kv_len], the weights of other pairs are dropped,
    and these are scaled by 1 / (1 - dropout_p).
    """
    batch, heads, q_len, head_dim = q.shape
    kv_heads, kv_len = k.shape[1:3]
    group = heads // kv_heads
    wide = torch.promote_types(q.dtype, torch.float32)
    k, v = (tensor.to(wide).repeat_interleave(group, 1) for tensor in (k, v))
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    if isinstance(scale, int):
        scale = check_scalar("scale", scale, float)  # torch takes none beyond 64 bits
    product = q.to(wide) @ k.transpose(-1, -2) * scale

    b = torch.arange(batch, device=q.device)[:, None, None, None]
    h = torch.arange(heads, device=q.device)[None, :, None, None]
    q_position = torch.arange(q_len, device=q.device)[:, None] + (kv_len - q_len if bottom_right else 0)
    k_position = torch.arange(kv_len, device=q.device)[None, :]
    places: tuple[torch.Tensor, ...] = (b, h, h // group, q_position, k_position)
    if not product.numel():
        # No pair reads anything, of inputs without an element either.
        places = tuple(each.expand(product.shape) for each in places)
    score, hidden = _scores(formula, product, places)
    sink = None if sinks is None else sinks.to(wide)[None, :, None].expand(batch, heads, q_len)
    weights, lse = _softmax(score, hidden.all(-1), sink)
    out = without_dropped(weights, kept, dropout_p) @ v
    found = (out.to(q.dtype), *((lse,) if return_lse else ()), *((_largest(score),) if return_max else ()))
    return found if len(found) > 1 else found[0]


def _scores(
    formula: Formula, product: torch.Tensor, places: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scores of all pairs, minus infinity of hidden ones, and which these are.

    What is hidden has no gradient, also where the formula's derivative there is infinite or NaN: a distance that is
    negative, say, has no logarithm. So where others than the product have a gradient the formula is evaluated for
    visible pairs alone, one after the other. Of tensors without values, and within transforms, that cannot be.
    """
    learned = _has_values(product) and _is_learned(formula, product, places)
    with torch.set_grad_enabled(torch.is_grad_enabled() and not learned):
        score, mask = formula(product, *places)
    # Also where it is computed in float64: two masks of float32's least number hide what they both hide.
    lost = score.detach().float() == -math.inf
    hidden = lost if mask is None else ~mask | lost
    hidden = hidden.expand(product.shape)
    if learned:
        if bool(hidden.any()):
            return _of_visible(formula, product, places, ~hidden), hidden
        score, _ = formula(product, *places)
    elif score is not product and product.requires_grad:
        product.register_hook(lambda gradient: gradient.masked_fill(hidden, 0))
    return score.to(product.dtype).expand(product.shape).masked_fill(hidden, -math.inf), hidden


def _of_visible(
    formula: Formula, product: torch.Tensor, places: tuple[torch.Tensor, ...], visible: torch.Tensor
) -> torch.Tensor:
    """The scores of visible pairs, each evaluated by itself, and minus infinity.

    Where every head of every batch element sees the same pairs, b and h stay axes of their own: what reads these alone
    is read once for each, and its gradient need not be summed over pairs. Where they see nothing, that would still be
    read, and an infinite derivative times no pair's gradient is NaN.
    """
    alike = visible[:1, :1]
    if bool(alike.any()) and bool((visible == alike).all()):
        rows, keys = alike[0, 0].nonzero(as_tuple=True)
        seen, places = product[..., rows, keys], _of_pairs(places, rows, keys)
    else:
        seen, places = product[visible], tuple(each.expand(product.shape)[visible] for each in places)
    score, _ = formula(seen, *places)
    score = score.to(product.dtype).expand(seen.shape)
    return torch.full_like(product, -math.inf).masked_scatter(visible, score)


def _of_pairs(places: tuple[torch.Tensor, ...], rows: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The places of these pairs of a row and a key, broadcasting to [batch, heads, pairs]."""
    b, h, kv_h, q, k = places
    return b[..., 0], h[..., 0], kv_h[..., 0], q[rows, 0], k[0, keys]


def _has_values(tensor: torch.Tensor) -> bool:
    """Whether the values of a tensor can be looked at: not those of meta and fake tensors, nor while torch traces."""
    return is_real(tensor) and not is_transformed() and not torch.compiler.is_compiling()


def _is_learned(formula: Formula, product: torch.Tensor, places: tuple[torch.Tensor, ...]) -> bool:
    """Whether something else that a score depends on has a gradient: asked of no pair at all."""
    if not torch.is_grad_enabled():
        return False
    score, _ = formula(*(each[..., :0] for each in (product.detach(), *places)))
    return bool(score.requires_grad)


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
