"""What a call counts for torch's FlopCounterMode.

As for torch's own attention it is its products, of each query with every key of its sequence: what a mask hides counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from flashgen.runtime.dispatch import is_real
from flashgen.runtime.variant import Variant


def register_flops(operator: Any, flops: Callable[..., int]) -> None:
    """Let torch ask `flops`, which takes the arguments of this operator, an OpOverloadPacket."""
    register_flop_formula(operator, get_raw=True)(lambda *arguments, out_val=None: flops(*arguments))


def pairs_of(variant: Variant, q: torch.Tensor, k: torch.Tensor, own: Sequence[Any]) -> int:
    """Pairs of a query and a key of its sequence, of one head. `own` are the variant's arguments.

    Where lengths cannot be looked at all are taken for the longest.
    """
    if not variant.packed:
        return q.shape[0] * q.shape[2] * k.shape[2]
    inputs, params = variant.signature.split(own)
    cu_seqlens_q, cu_seqlens_k = inputs[:2]
    assert cu_seqlens_q is not None and cu_seqlens_k is not None
    if not (is_real(cu_seqlens_q) and is_real(cu_seqlens_k)):
        return q.shape[0] * int(params["max_seqlen_k"])
    return int((cu_seqlens_q.diff() * cu_seqlens_k.diff().long()).sum())


def paged_pairs(q: torch.Tensor, seq_lens: torch.Tensor, cu_seqlens_q: torch.Tensor | None, max_seqlen_k: int) -> int:
    """The same of a call over a paged cache."""
    if not (is_real(seq_lens) and (cu_seqlens_q is None or is_real(cu_seqlens_q))):
        return q.shape[0] * max_seqlen_k
    q_lens = 1 if cu_seqlens_q is None else cu_seqlens_q.diff()
    return int((seq_lens.long() * q_lens).sum())


def forward_flops(heads: int, pairs: int, head_dim: int, v_head_dim: int) -> int:
    """Those of q k^T and of the weights with v."""
    return 2 * heads * pairs * (head_dim + v_head_dim)


def backward_flops(heads: int, pairs: int, head_dim: int, v_head_dim: int, needs: Sequence[bool]) -> int:
    """Those of q k^T again and of d_out with v, and of dq, dk and dv where they are asked for."""
    dq, dk, dv = needs[:3]
    return 2 * heads * pairs * ((1 + dq + dk) * head_dim + (1 + dv) * v_head_dim)
