"""What a generated attention_varlen() and plan_varlen() do with their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flashgen.runtime.attend import attend, make_plan
from flashgen.runtime.operator import Operator
from flashgen.runtime.schedule import Plan
from flashgen.runtime.variant import Variant


def attend_varlen(
    variant: Variant, operator: Operator, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor, max_seqlen_q: int, max_seqlen_k: int,
    inputs: Sequence[torch.Tensor | None] = (), params: Sequence[Any] = (), *, scale: float | None, return_lse: bool,
    return_max: bool, config: Any, backward_config: Any, deterministic: bool | None, plan: Plan | None = None,
) -> torch.Tensor | tuple[torch.Tensor, ...]:  # fmt: skip
    """attention_varlen() of a variant, by its operator. `inputs` and `params` are the caller's.

    Raises ValueError or TypeError for shapes, dtypes or devices that do not fit.
    """
    q, k, v = _as_batch_of_one(q, k, v, cu_seqlens_q, cu_seqlens_k)
    out, *rows = attend(
        variant, operator, q, k, v, (cu_seqlens_q, cu_seqlens_k, *inputs), (max_seqlen_q, max_seqlen_k, *params),
        scale=scale, return_lse=True, return_max=return_max, config=config, backward_config=backward_config,
        deterministic=deterministic, plan=plan,
    )  # fmt: skip
    packed = out.squeeze(0).transpose(0, 1)
    found = (packed, *(each.squeeze(0) for each in (rows if return_lse else rows[1:])))
    return found if len(found) > 1 else packed


def make_varlen_plan(
    variant: Variant, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor, max_seqlen_q: int, max_seqlen_k: int,
    inputs: Sequence[torch.Tensor | None] = (), params: Sequence[Any] = (), *, config: Any,
) -> Plan:  # fmt: skip
    """plan_varlen() of a variant: the schedule for these arguments."""
    q, k, v = _as_batch_of_one(q, k, v, cu_seqlens_q, cu_seqlens_k)
    return make_plan(
        variant, q, k, v, (cu_seqlens_q, cu_seqlens_k, *inputs), (max_seqlen_q, max_seqlen_k, *params), config=config
    )


def _as_batch_of_one(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v as [1, heads, total, dim], where they fit each other; ValueError or TypeError where they do not."""
    for name, tensor in (("q", q), ("k", k), ("v", v), ("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is {type(tensor).__name__}; expected a torch.Tensor")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim != 3:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected 3 dimensions, [total, heads, head_dim]")
    if k.shape[2] != q.shape[2]:
        raise ValueError(f"k has shape {tuple(k.shape)}; expected [total_k, kv_heads, head_dim], q's {q.shape[2]}")
    if v.shape[:2] != k.shape[:2]:
        raise ValueError(
            f"v has shape {tuple(v.shape)}; expected [total_k, kv_heads, v_head_dim] with k's total_k {k.shape[0]} and "
            f"kv_heads {k.shape[1]}"
        )
    for name, ends in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if ends.dtype != torch.int32 or ends.device != q.device:
            raise TypeError(f"{name} is {ends.dtype} on {ends.device}; expected int32 on {q.device}")
        if ends.ndim != 1 or ends.shape[0] < 1 or ends.shape != cu_seqlens_q.shape:
            raise ValueError(
                f"{name} has shape {tuple(ends.shape)}; expected [batch + 1], the same for queries and keys"
            )
    return tuple(each.transpose(0, 1).unsqueeze(0) for each in (q, k, v))  # type: ignore[return-value]
