"""Attention over a paged cache as a torch operator: it writes what it is given room for, and nothing is traced."""

from __future__ import annotations

from typing import Any

import torch

from flashgen.runtime.decoding_paged import know, known_by, launch_paged
from flashgen.runtime.operator import Operator, operator
from flashgen.runtime.own import given_own
from flashgen.runtime.paged import prepare_paged
from flashgen.runtime.variant import Variant

_BEFORE = "Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor seq_lens, Tensor? cu_seqlens_q, "
_AFTER = (
    "Tensor? k_scale, Tensor? v_scale, Tensor? items, Tensor? count, Tensor(a!) out, Tensor(b!) lse, "
    "int max_seqlen_q, int? max_seqlen_k, float? scale, bool batch_invariant, str? config"
)


def paged_operator(variant: Variant, shared: bool = False) -> Operator:
    """Register flashgen::<variant>_<digests>_paged, which writes out and lse; `shared` as for attention_operator."""
    schema = variant.signature.schema
    name = "_".join([*(["exported"] if shared else []), known_by(variant), "paged"])
    know(variant)
    own = len(variant.signature.names)

    def launch(
        q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor,
        seq_lens: torch.Tensor, cu_seqlens_q: torch.Tensor | None, *rest: Any,
    ) -> None:  # fmt: skip
        k_scale, v_scale, items, count, out, lse, max_seqlen_q, max_seqlen_k, scale, invariant, config = rest[own:]
        call = prepare_paged(
            q, k_cache, v_cache, block_table, seq_lens, cu_seqlens_q, max_seqlen_q, max_seqlen_k, scale, k_scale,
            v_scale,
        )  # fmt: skip
        if own:
            inputs, params = variant.signature.split(rest[:own])
            given, layout = given_own(variant, variant.packed_inputs, call.q, call.layout, inputs, params)
            call = call._replace(given=given, own=layout)
        launch_paged(variant, call, out, lse, (items, count), invariant, config)

    def fake(*_: Any) -> None:
        """Nothing is returned."""

    signature = f"({_BEFORE}{schema}{', ' if schema else ''}{_AFTER}) -> ()"
    return operator(name, signature, launch, fake, shared=shared)
