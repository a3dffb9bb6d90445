"""What a generated attention_paged() does with its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flashgen.runtime.arguments import kind_beside
from flashgen.runtime.attention import inputs_of, scalars_of
from flashgen.runtime.autocast import autocast_beside_cache
from flashgen.runtime.choosing import config_text
from flashgen.runtime.planning_paged import PagedPlan, PlanParts
from flashgen.runtime.torch_operator import Operator
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
    own: Sequence[Any] = ()
    if inputs or params:
        own = [*inputs_of(variant, inputs), *variant.signature.packs(scalars_of(variant, params))]
    parts, invariant, text = _plan_arguments(variant, plan, batch_invariant, config_text(config, "decode_paged"))
    if isinstance(q, torch.Tensor) and isinstance(k_cache, torch.Tensor):  # else the operator says what is no tensor
        q = autocast_beside_cache(q, k_cache)
    made, lse = operator(
        q, k_cache, v_cache, block_table, seq_lens, cu_seqlens_q, *own, k_scale, v_scale, *parts, out, None,
        max_seqlen_q, max_seqlen_k, scale, invariant, text,
    )  # fmt: skip
    found: Any = out if made is None else made
    return (found, lse) if return_lse else found


def _plan_arguments(
    variant: Variant, plan: PagedPlan | None, batch_invariant: bool, config: str | None
) -> tuple[PlanParts, bool, str | None]:
    """A plan as the operator takes it, with what it was made with; ValueError where the caller says otherwise."""
    if plan is None:
        return (None, None, None), batch_invariant, config
    if not isinstance(plan, PagedPlan):
        raise TypeError(f"plan is {kind_beside(PagedPlan, plan)}; expected what plan_paged(...) returned")
    variant.refuse_plan_of(plan.variant)
    if batch_invariant and not plan.batch_invariant:
        raise ValueError(
            "batch_invariant is True and the plan's is not; expected plan_paged(..., batch_invariant=True)"
        )
    if config not in (None, plan.config):
        raise ValueError(f"config is {config!r}; expected the plan's, {plan.config!r}")
    return (plan.items, plan.count, plan.sizes), plan.batch_invariant, plan.config
