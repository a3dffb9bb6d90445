"""The variant through compiled FlexAttention: what a user would write today, from the same expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from flashgen.codegen.pairwise import Pairwise
from flashgen.lang.nodes import TRUE, Type, var, variables
from flashgen.problems import Call, Problem
from flashgen.spec.variant import Variant

if TYPE_CHECKING:
    from torch import Tensor

Attend = Callable[["Tensor", "Tensor", "Tensor"], "Tensor"]


def flex_attention(
    variant: Variant, problem: Problem, call: Call, pairwise: Pairwise, compiled: bool = True
) -> Callable[[], Tensor]:
    """A call that runs FlexAttention on the problem; the block mask is made once, before."""
    sinks = call.inputs["sinks"] if variant.sink else None
    attend = flex_function(variant, problem, pairwise, sinks, str(call.q.device), compiled)
    return lambda: attend(call.q, call.k, call.v)


def flex_function(
    variant: Variant, problem: Problem, pairwise: Pairwise, sinks: Tensor | None, device: str, compiled: bool = True
) -> Attend:
    """FlexAttention as a function of q, k, v of the problem's sizes on `device`; `sinks` float32 [heads], if any."""
    import torch
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask
    from torch.nn.attention.flex_attention import flex_attention as flex

    block_mask = None
    if variant.mask is not TRUE:
        used = variables(variant.mask)
        # Compiled, or it would hold the whole mask in memory.
        block_mask = (torch.compile(create_block_mask) if compiled else create_block_mask)(
            pairwise.mask,
            problem.batch if "b" in used else None,
            problem.heads if used & {"h", "kv_h"} else None,
            problem.q_len,
            problem.kv_len,
            device=device,
        )
    score_mod = None if variant.score is var("score", Type.FLOAT) else pairwise.score
    grouped = problem.heads != problem.kv_heads

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if sinks is None:
            return flex(q, k, v, score_mod=score_mod, block_mask=block_mask, enable_gqa=grouped)
        out, aux = flex(
            q, k, v, score_mod=score_mod, block_mask=block_mask, enable_gqa=grouped,
            return_aux=AuxRequest(lse=True),
        )  # fmt: skip
        assert aux.lse is not None
        # FlexAttention has no sink: the further logit shrinks every row by a factor that its LSE gives.
        kept = torch.sigmoid(aux.lse - sinks[None, :, None])
        return (out * kept[..., None]).to(q.dtype)

    return torch.compile(attend, fullgraph=True, dynamic=False) if compiled else attend
