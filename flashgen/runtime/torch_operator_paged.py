"""Attention over a paged cache as a torch operator: it writes what it is given room for, and nothing is traced.

Its function may be given None for either: it makes room itself then, and returns it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from flashgen.runtime.arguments import check_paged_types
from flashgen.runtime.decoding_paged import launch_paged
from flashgen.runtime.flops import forward_flops, paged_pairs
from flashgen.runtime.own_arguments import check_inputs, given_own
from flashgen.runtime.paged import PagedArguments, PagedTensors, layout_of, prepare_paged
from flashgen.runtime.planning_paged import PlanParts, register_paged_plan
from flashgen.runtime.strides import is_contiguous_last, overlaps
from flashgen.runtime.torch_operator import Operator, operator
from flashgen.runtime.variant import Variant
from flashgen.runtime.without_gradients import WithoutGradients

_BEFORE = "Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor seq_lens, Tensor? cu_seqlens_q, "
_AFTER = (
    "Tensor? k_scale, Tensor? v_scale, Tensor? items, Tensor? count, SymInt[]? planned, Tensor(a!) out, "
    "Tensor(b!) lse, SymInt max_seqlen_q, SymInt? max_seqlen_k, float? scale, bool batch_invariant, str? config"
)
# Where the variant's own stand among the arguments, and without these out; lse follows.
_OWN, _OUT = 6, 11


def paged_operator(variant: Variant, shared: bool = False) -> Operator:
    """Register flashgen::<variant>_<digests>_paged, which writes out and lse, and <...>_paged_plan, which plans for it.

    `shared` as for attention_operator.
    """
    schema = variant.signature.schema
    name = f"{'exported_' * shared}{variant.full_name}_paged"
    register_paged_plan(variant, f"{name}_plan", shared=shared)
    own = len(variant.signature.names)
    out_at = _OUT + own

    def launch(*arguments: Any) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        given = _in_parts(arguments, own)
        # Not before each call: one that is like another has been through it.
        _check_types(given)
        call = prepare_paged(given.call)
        written = _room(given)
        if own:
            inputs, params = variant.signature.split(given.own)
            tensors, layout = given_own(variant, variant.packed_inputs, call.tensors.q, call.layout, inputs, params)
            call = call._replace(given=tensors, own=layout)
        launch_paged(variant, call, *written, given.plan, given.batch_invariant, given.config)
        return _made(given, written)

    def completed(*arguments: Any) -> None:
        launch(*arguments)

    def dispatched(overload: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> tuple[torch.Tensor | None, torch.Tensor | None]:
            given = _in_parts(arguments, own)
            _check_types(given)
            written = _room(given)
            overload(*arguments[:out_at], *written, *arguments[out_at + 2 :])
            return _made(given, written)

        return run

    def fake(*arguments: Any) -> None:
        """Nothing is returned; what does not fit is refused as by a launch."""
        given = _in_parts(arguments, own)
        layout = layout_of(given.call)
        check_inputs(variant.packed_inputs, given.call.tensors.q, layout.sizes, *variant.signature.split(given.own))

    def flops(*arguments: Any) -> int:
        call = _in_parts(arguments, own).call
        given = call.tensors
        room = given.block_table.shape[1] * given.k_cache.shape[1]
        longest = room if call.max_seqlen_k is None else call.max_seqlen_k
        pairs = paged_pairs(given.q, given.seq_lens, given.cu_seqlens_q, longest)
        return forward_flops(given.q.shape[1], pairs, given.q.shape[2], given.v_cache.shape[3])

    signature = f"({_BEFORE}{schema}{', ' if schema else ''}{_AFTER}) -> ()"
    return operator(
        name, signature, launch, fake, shared=shared, completed=completed, dispatched=dispatched,
        without=WithoutGradients(name, out_at), flops=flops,
    )  # fmt: skip


class _Given(NamedTuple):
    """The operator's arguments in parts; `own` are the variant's."""

    call: PagedArguments
    own: Sequence[Any]
    plan: PlanParts
    out: torch.Tensor | None
    lse: torch.Tensor | None
    batch_invariant: bool
    config: str | None


def _in_parts(arguments: Sequence[Any], own: int) -> _Given:
    """The arguments of a variant that has so many of its own."""
    q, k_cache, v_cache, block_table, seq_lens, cu_seqlens_q = arguments[:_OWN]
    k_scale, v_scale, items, count, planned, out, lse, *numbers, invariant, config = arguments[_OWN + own :]
    tensors = PagedTensors(q, k_cache, v_cache, block_table, seq_lens, cu_seqlens_q, k_scale, v_scale)
    max_seqlen_q, max_seqlen_k, scale = numbers
    call = PagedArguments(tensors, max_seqlen_q, max_seqlen_k, scale)
    return _Given(call, arguments[_OWN : _OWN + own], (items, count, planned), out, lse, invariant, config)


def _check_types(given: _Given) -> None:
    tensors, max_seqlen_q, max_seqlen_k, scale = given.call
    check_paged_types(max_seqlen_q, max_seqlen_k, given.batch_invariant, scale, **tensors.named, out=given.out)


def _room(given: _Given) -> tuple[torch.Tensor, torch.Tensor]:
    return room_for(given.call.tensors.q, given.call.tensors.v_cache, given.out, given.lse)


def _made(given: _Given, written: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Of out and lse what the caller gave no room for."""
    return None if given.out is not None else written[0], None if given.lse is not None else written[1]


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
