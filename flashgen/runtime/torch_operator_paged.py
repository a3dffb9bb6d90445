"""Attention over a paged cache as a torch operator: it writes what it is given room for, and nothing is traced.

Its function may be given None for either: it makes room itself then, and returns it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flashgen.runtime.arguments import check_paged_types
from flashgen.runtime.decoding_paged import launch_paged
from flashgen.runtime.flops import forward_flops, paged_pairs
from flashgen.runtime.overlap import overlaps
from flashgen.runtime.own_arguments import check_inputs, given_own
from flashgen.runtime.paged import layout_of, prepare_paged
from flashgen.runtime.planning_paged import register_paged_plan
from flashgen.runtime.strides import is_contiguous_last
from flashgen.runtime.torch_operator import Operator, operator
from flashgen.runtime.variant import Variant
from flashgen.runtime.without_gradients import WithoutGradients

_BEFORE = "Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor seq_lens, Tensor? cu_seqlens_q, "
_AFTER = (
    "Tensor? k_scale, Tensor? v_scale, Tensor? items, Tensor? count, SymInt[]? planned, Tensor(a!) out, "
    "Tensor(b!) lse, SymInt max_seqlen_q, SymInt? max_seqlen_k, float? scale, bool batch_invariant, str? config"
)
# Where out stands among the arguments, the variant's own left out; lse follows.
_OUT = 11


def paged_operator(variant: Variant, shared: bool = False) -> Operator:
    """Register flashgen::<variant>_<digests>_paged, which writes out and lse, and <...>_paged_plan, which plans for it.

    `shared` as for attention_operator.
    """
    schema = variant.signature.schema
    name = f"{'exported_' * shared}{variant.full_name}_paged"
    register_paged_plan(variant, f"{name}_plan", shared=shared)
    own = len(variant.signature.names)

    def check_types(
        q: object, k_cache: object, v_cache: object, block_table: object, seq_lens: object, cu_seqlens_q: object,
        *rest: Any,
    ) -> None:  # fmt: skip
        k_scale, v_scale, _, _, _, out, _, max_seqlen_q, max_seqlen_k, scale, invariant, _ = rest[own:]
        check_paged_types(
            max_seqlen_q, max_seqlen_k, invariant, scale, q=q, k_cache=k_cache, v_cache=v_cache,
            block_table=block_table, seq_lens=seq_lens, cu_seqlens_q=cu_seqlens_q, k_scale=k_scale, v_scale=v_scale,
            out=out,
        )  # fmt: skip

    def launch(
        q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor,
        seq_lens: torch.Tensor, cu_seqlens_q: torch.Tensor | None, *rest: Any,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
        k_scale, v_scale, *plan, out, lse, max_seqlen_q, max_seqlen_k, scale, invariant, config = rest[own:]
        # Not before each call: one that is like another has been through it.
        check_types(q, k_cache, v_cache, block_table, seq_lens, cu_seqlens_q, *rest)
        call = prepare_paged(
            q, k_cache, v_cache, block_table, seq_lens, cu_seqlens_q, max_seqlen_q, max_seqlen_k, scale, k_scale,
            v_scale,
        )  # fmt: skip
        written = room_for(q, v_cache, out, lse)
        if own:
            inputs, params = variant.signature.split(rest[:own])
            given, layout = given_own(variant, variant.packed_inputs, call.q, call.layout, inputs, params)
            call = call._replace(given=given, own=layout)
        launch_paged(variant, call, *written, tuple(plan), invariant, config)
        return None if out is not None else written[0], None if lse is not None else written[1]

    def completed(*given: Any) -> None:
        launch(*given)

    def dispatched(overload: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> tuple[torch.Tensor | None, torch.Tensor | None]:
            check_types(*given)
            out, lse = given[_OUT + own : _OUT + own + 2]
            written = room_for(given[0], given[2], out, lse)
            overload(*given[: _OUT + own], *written, *given[_OUT + own + 2 :])
            return None if out is not None else written[0], None if lse is not None else written[1]

        return run

    def fake(
        q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor,
        seq_lens: torch.Tensor, cu_seqlens_q: torch.Tensor | None, *rest: Any,
    ) -> None:  # fmt: skip
        """Nothing is returned; what does not fit is refused as by a launch."""
        k_scale, v_scale, *_, max_seqlen_q, max_seqlen_k, scale, _, _ = rest[own:]
        layout = layout_of(
            q, k_cache, v_cache, block_table, seq_lens, cu_seqlens_q, k_scale, v_scale, max_seqlen_q, max_seqlen_k,
            scale,
        )  # fmt: skip
        check_inputs(variant.packed_inputs, q, layout.sizes, *variant.signature.split(rest[:own]))

    def flops(
        q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor,
        seq_lens: torch.Tensor, cu_seqlens_q: torch.Tensor | None, *rest: Any,
    ) -> int:  # fmt: skip
        longest = rest[-4] if rest[-4] is not None else block_table.shape[1] * k_cache.shape[1]
        pairs = paged_pairs(q, seq_lens, cu_seqlens_q, longest)
        return forward_flops(q.shape[1], pairs, q.shape[2], v_cache.shape[3])

    signature = f"({_BEFORE}{schema}{', ' if schema else ''}{_AFTER}) -> ()"
    without = WithoutGradients(name, _OUT + own)
    return operator(
        name, signature, launch, fake, shared=shared, completed=completed, dispatched=dispatched, without=without,
        flops=flops,
    )  # fmt: skip


def room_for(
    q: torch.Tensor, v_cache: torch.Tensor, out: torch.Tensor | None, lse: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [total_q, heads, v_head_dim] in q's dtype and lse [heads, total_q] in float32, those that are given or new.

    ValueError for an out that does not fit.
    """
    for name, tensor, dims in (("q", q, 3), ("v_cache", v_cache, 4)):
        if tensor.ndim != dims:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected a tensor of {dims} dimensions")
    total_q, heads, v_head_dim = *q.shape[:2], v_cache.shape[3]
    if out is None:
        out = q.new_empty((total_q, heads, v_head_dim))
    elif tuple(out.shape) != (total_q, heads, v_head_dim) or out.dtype != q.dtype or out.device != q.device:
        raise ValueError(
            f"out has shape {tuple(out.shape)} and dtype {out.dtype} on {out.device}; expected "
            f"{(total_q, heads, v_head_dim)}, {q.dtype} on {q.device}"
        )
    elif not is_contiguous_last(out) or overlaps(out):
        raise ValueError(
            f"out has strides {out.stride()}; expected a contiguous last dimension, and a place for each element"
        )
    return out, q.new_empty((heads, total_q), dtype=torch.float32) if lse is None else lse
