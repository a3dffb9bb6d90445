"""What a generated attention_varlen() and plan_varlen() do with their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flashgen.runtime.arguments import check_types
from flashgen.runtime.attention import attend, make_plan
from flashgen.runtime.packed_form import as_batch_of_one, refuse_odd_ends
from flashgen.runtime.schedule import Plan
from flashgen.runtime.torch_operator import Operator
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
    refuse_odd_ends(q, cu_seqlens_q, cu_seqlens_k)
    return attend(
        variant, operator, q, k, v, (cu_seqlens_q, cu_seqlens_k, *inputs), (max_seqlen_q, max_seqlen_k, *params),
        scale=scale, return_lse=return_lse, return_max=return_max, config=config, backward_config=backward_config,
        deterministic=deterministic, plan=plan,
    )  # fmt: skip


def make_varlen_plan(
    variant: Variant, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor, max_seqlen_q: int, max_seqlen_k: int,
    inputs: Sequence[torch.Tensor | None] = (), params: Sequence[Any] = (), *, config: Any,
) -> Plan:  # fmt: skip
    """plan_varlen() of a variant: the schedule for these arguments."""
    check_types(q, k, v)
    q, k, v = as_batch_of_one(q, k, v, cu_seqlens_q, cu_seqlens_k)
    return make_plan(
        variant, q, k, v, (cu_seqlens_q, cu_seqlens_k, *inputs), (max_seqlen_q, max_seqlen_k, *params), config=config
    )
