"""What a generated attention_paged() does with its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flashgen.runtime.attend import inputs_of, scalars_of
from flashgen.runtime.choosing import config_text
from flashgen.runtime.decoding_paged import PagedPlan
from flashgen.runtime.operator import Operator
from flashgen.runtime.variant import Variant


def attend_paged(
    variant: Variant, operator: Operator, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
    block_table: torch.Tensor, seq_lens: torch.Tensor, inputs: Sequence[torch.Tensor | None] = (),
    params: Sequence[Any] = (), *, cu_seqlens_q: torch.Tensor | None, max_seqlen_q: int, max_seqlen_k: int | None,
    scale: float | None, k_scale: torch.Tensor | None, v_scale: torch.Tensor | None, return_lse: bool,
    out: torch.Tensor | None, batch_invariant: bool, plan: PagedPlan | None, config: Any,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """attention_paged() of a variant, by its operator. `inputs` and `params` are the caller's.

    Raises ValueError or TypeError for shapes, dtypes or devices that do not fit.
    """
    own = [*inputs_of(variant, inputs), *variant.signature.packs(scalars_of(variant, params))]
    items, count, invariant, text = _plan_arguments(plan, batch_invariant, config_text(config, "decode_paged"))
    out, lse = _results(q, v_cache, out)
    operator(
        q, k_cache, v_cache, block_table, seq_lens, cu_seqlens_q, *own, k_scale, v_scale, items, count, out, lse,
        max_seqlen_q, max_seqlen_k, scale, invariant, text,
    )  # fmt: skip
    return (out, lse) if return_lse else out


def _results(q: torch.Tensor, v_cache: torch.Tensor, out: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """out [total_q, heads, v_head_dim] in q's dtype, or that of the caller, and lse [heads, total_q] in float32."""
    for name, tensor, dims in (("q", q, 3), ("v_cache", v_cache, 4)):
        if not isinstance(tensor, torch.Tensor) or tensor.ndim != dims:
            what = (
                f"has shape {tuple(tensor.shape)}"
                if isinstance(tensor, torch.Tensor)
                else f"is {type(tensor).__name__}"
            )
            raise ValueError(f"{name} {what}; expected a tensor of {dims} dimensions")
    total_q, heads, v_head_dim = *q.shape[:2], v_cache.shape[3]
    if out is None:
        out = q.new_empty((total_q, heads, v_head_dim))
    elif tuple(out.shape) != (total_q, heads, v_head_dim) or out.dtype != q.dtype or out.device != q.device:
        raise ValueError(
            f"out has shape {tuple(out.shape)} and dtype {out.dtype} on {out.device}; expected "
            f"{(total_q, heads, v_head_dim)}, {q.dtype} on {q.device}"
        )
    elif out.stride(2) != 1:
        raise ValueError(f"out has strides {out.stride()}; expected a contiguous last dimension")
    return out, q.new_empty((heads, total_q), dtype=torch.float32)


def _plan_arguments(
    plan: PagedPlan | None, batch_invariant: bool, config: str | None
) -> tuple[torch.Tensor | None, torch.Tensor | None, bool, str | None]:
    """A plan as the operator takes it, with what it was made with; ValueError where the caller says otherwise."""
    if plan is None:
        return None, None, batch_invariant, config
    if not isinstance(plan, PagedPlan):
        raise TypeError(f"plan is {type(plan).__name__}; expected what plan_paged(...) returned")
    if batch_invariant and not plan.batch_invariant:
        raise ValueError(
            "batch_invariant is True and the plan's is not; expected plan_paged(..., batch_invariant=True)"
        )
    if config not in (None, plan.config):
        raise ValueError(f"config is {config!r}; expected the plan's, {plan.config!r}")
    return plan.items, plan.count, plan.batch_invariant, plan.config
