"""What gradients of scores add up before anything cancels: for each pair, and for each row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from flashgen.lang.log2 import logits
from flashgen.problems.calls import Call
from flashgen.problems.dropped import Dropping
from flashgen.spec.variant import Variant
from flashgen.verify.budget import U32, Reference, cut_off, roundoff
from flashgen.verify.eager_gradients import evaluate


def as_rounded(reference: Reference, variant: Variant) -> Reference:
    """The formula, told whether the variant's kernels round d_out anew."""
    if not isinstance(reference, Dropping):
        return reference
    return replace(reference, rescaled=logits(variant.score, variant.mask).natural)


def uncancelled(
    call: Call, leaves: Mapping[str, torch.Tensor], d_out: torch.Tensor, lse: torch.Tensor, d_lse: torch.Tensor,
    reference: Reference, scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """P (|dP| + w) for each pair, and w for each row, as `gradient_budget` has them."""
    kv_heads, kv_len = call.k.shape[1:3]
    # With the identity for v, out is the matrix of weights.
    unit = torch.eye(kv_len, dtype=torch.float64, device=call.q.device).expand(len(call.q), kv_heads, kv_len, kv_len)
    kept = weights = evaluate(reference, call, {**leaves, "v": unit}, scale)[0]
    values = grouped(leaves["v"], call)
    d_weights = (d_out @ values.transpose(-1, -2)).abs()
    out = kept @ values
    row = (kept * d_weights).sum(-1) + (d_out * out).norm(dim=-1) + d_lse.abs()
    if isinstance(reference, Dropping):
        # A weight that is dropped, and has none of its row's gradient through out, has it through the others.
        weights = evaluate(reference.undropped, call, {**leaves, "v": unit}, scale)[0]
        if reference.rescaled:
            row = row + _of_rounded_d_out(call, values, d_out, lse, kept, weights)
    return kept * d_weights + weights * row[..., None], row


def _of_rounded_d_out(
    call: Call, values: torch.Tensor, d_out: torch.Tensor, lse: torch.Tensor, kept: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """What the roundings of d_out times a factor may come to in one of a row's dP, beside u: their Euclidean norm.

    float32 holds lse to 2 u32 |lse|, its neighbour below to twice as much. Where that is less than u / 2, half of
    what the dtype has between two numbers, the factor rounds to 1; unless what does not fit is cut off. Without
    dropout w is no less: there out is a mean of all values. In float32 f covers it.
    """
    if call.q.dtype == torch.float32:
        return torch.zeros_like(lse)
    rounded = lse.abs() > (0.0 if cut_off(call.q) else roundoff(call.q) / (8 * U32))
    factors = torch.where(kept > 0, kept / weights, 0.0)
    norms = (d_out.square() @ values.square().transpose(-1, -2)).sqrt()
    return torch.where(rounded, (factors * norms).amax(-1), 0.0)


def grouped(tensor: torch.Tensor, call: Call) -> torch.Tensor:
    """A tensor of the keys, repeated for each head of a group."""
    return tensor.repeat_interleave(call.q.shape[1] // call.k.shape[1], dim=1)
