"""Packed sequences in the two forms that they have: one after the other for callers and operators, a batch of one for
kernels.

Callers pass [total, heads, dim] and get rows as [heads, total]; kernels and all that launches them have a batch of 1
in front, and heads before lengths.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def refuse_odd_ends(q: object, cu_seqlens_q: object, cu_seqlens_k: object) -> None:
    """Refuse what is no tensor of int32, which inputs of other kinds would be brought to."""
    for name, ends in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if not isinstance(ends, torch.Tensor):
            raise TypeError(f"{name} is {type(ends).__name__}; expected a torch.Tensor")
        if ends.dtype != torch.int32:
            wanted = f" on {q.device}" if isinstance(q, torch.Tensor) else ""
            raise TypeError(f"{name} is {ends.dtype} on {ends.device}; expected int32{wanted}")


def as_batch_of_one(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_k: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """q, k and v as [1, heads, total, dim], where they fit each other; ValueError or TypeError where they do not."""
    refuse_odd_ends(q, cu_seqlens_q, cu_seqlens_k)
    assert cu_seqlens_q is not None and cu_seqlens_k is not None
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
        if ends.device != q.device:
            raise TypeError(f"{name} is {ends.dtype} on {ends.device}; expected int32 on {q.device}")
        if ends.ndim != 1 or ends.shape[0] < 1 or ends.shape != cu_seqlens_q.shape:
            raise ValueError(
                f"{name} has shape {tuple(ends.shape)}; expected [batch + 1], the same for queries and keys"
            )
    return by_head(q), by_head(k), by_head(v)


def by_head(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor [total, heads, dim] as [1, heads, total, dim]."""
    return tensor.transpose(0, 1).unsqueeze(0)


def by_token(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor [1, heads, total, dim] as [total, heads, dim]."""
    return tensor.squeeze(0).transpose(0, 1)


def given_by_head(found: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """out and what there is for each of its rows, as kernels have it."""
    out, *rows = found
    return by_head(out), *(each.unsqueeze(0) for each in rows)
