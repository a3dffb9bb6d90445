"""Attention over a paged cache as torch operators: they write what they are given room for, and nothing is traced."""

from __future__ import annotations

from typing import Any

from flashgen.runtime.identity import Identity
from flashgen.runtime.operator import Function, Operator, operator

_BEFORE = "Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor seq_lens, Tensor? cu_seqlens_q, "
_AFTER = (
    "Tensor? k_scale, Tensor? v_scale, Tensor? items, Tensor? count, Tensor(a!) out, Tensor(b!) lse, "
    "int max_seqlen_q, int? max_seqlen_k, float? scale, bool batch_invariant, str? config"
)


def paged_operator(identity: Identity, extra: str, launch: Function, *, shared: bool = False) -> Operator:
    """Register flashgen::<variant>_<digest>_paged, which writes out and lse.

    `extra` is the variant's own part of the signature, as attention_operator takes it; `launch` the generated function.
    """

    def fake(*_: Any) -> None:
        """Nothing is returned."""

    name = "_".join([identity.variant, identity.spec, "paged"])
    signature = f"({_BEFORE}{extra}{', ' if extra else ''}{_AFTER}) -> ()"
    return operator(name, signature, launch, fake, shared=shared)
