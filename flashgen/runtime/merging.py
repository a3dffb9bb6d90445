"""Merging partial results of attention over disjoint keys."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from flashgen.runtime.arguments import refuse_all_but_tensors, refuse_unstrided


def merge_states(
    outs: torch.Tensor | Sequence[torch.Tensor], lses: torch.Tensor | Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of attention over all keys, from those over parts that have no key in common.

    outs: each [batch, heads, q_len, v_head_dim] with lses [batch, heads, q_len], or each [total_q, heads, v_head_dim]
    with lses [heads, total_q]; natural logarithms, minus infinity for a row that saw no key of a part, whose out then
    counts for nothing, NaN included. Computed in float32, float64 for float64. A row that saw none of any part has out
    0 and lse minus infinity. Differentiable.

    Raises ValueError or TypeError for what does not fit.
    """
    _check_parts(outs, lses)
    dtype = torch.promote_types(outs[0].dtype, torch.float32)
    each = torch.stack([lse.to(dtype) for lse in lses])
    # The result does not depend on what is subtracted.
    highest = each.detach().amax(0)
    highest = torch.where(highest.isinf(), 0.0, highest)
    weights = torch.exp(each - highest)
    total = weights.sum(0)
    unseen = total == 0
    total = torch.where(unseen, 1.0, total)
    weights = weights / total
    # Where a part has no key nobody may have written its out, and 0 times NaN is NaN.
    without = each == -math.inf
    out = sum(
        _of_rows(weight, out.ndim) * out.to(dtype).masked_fill(_of_rows(empty, out.ndim), 0.0)
        for weight, empty, out in zip(weights, without, outs, strict=True)
    )
    assert isinstance(out, torch.Tensor)
    return out.to(outs[0].dtype), torch.where(unseen, -math.inf, torch.log(total) + highest).to(lses[0].dtype)


def _check_parts(outs: torch.Tensor | Sequence[torch.Tensor], lses: torch.Tensor | Sequence[torch.Tensor]) -> None:
    for name, given in (("outs", outs), ("lses", lses)):
        if not isinstance(given, (torch.Tensor, Sequence)):
            raise TypeError(f"{name} is {type(given).__name__}; expected a tensor, or a sequence of them")
        if isinstance(given, torch.Tensor):
            refuse_unstrided(**{name: given})
            if not given.ndim:
                raise ValueError(f"{name} has shape (); expected a first dimension, of the parts")
    if len(outs) != len(lses) or not len(outs):
        raise ValueError(f"there are {len(outs)} outs and {len(lses)} lses; expected as many, one at least")
    for number, (out, lse) in enumerate(zip(outs, lses, strict=True)):
        for name, part in ((f"outs[{number}]", out), (f"lses[{number}]", lse)):
            refuse_all_but_tensors(**{name: part})
            refuse_unstrided(**{name: part})
            if not part.is_floating_point() or part.device != outs[0].device:
                raise TypeError(f"{name} is {part.dtype} on {part.device}; expected floats on {outs[0].device}")
        packed = out.ndim == 3
        expected = (out.shape[1], out.shape[0]) if packed else out.shape[:-1]
        if out.ndim not in (3, 4) or tuple(lse.shape) != tuple(expected) or out.shape != outs[0].shape:
            raise ValueError(
                f"outs[{number}] has shape {tuple(out.shape)} and lses[{number}] {tuple(lse.shape)}; expected "
                "[batch, heads, q_len, v_head_dim] with [batch, heads, q_len], or [total_q, heads, v_head_dim] with "
                "[heads, total_q], the same for all"
            )


def _of_rows(weight: torch.Tensor, ndim: int) -> torch.Tensor:
    return (weight if ndim == 4 else weight.transpose(0, 1)).unsqueeze(-1)
