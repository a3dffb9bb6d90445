"""Dropout as callers see it: how a call gets its seed, and which pairs it keeps, in torch.

The seed is one number that torch's generator of the device draws, a tensor on the device: nothing waits for it, a graph
draws a new one on each replay, checkpointing draws the same one again. What kernels make of it, and why, says
`flashgen.runtime.device.dropout`; the same here shares no code with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flashgen.runtime.arguments import check_scalar, refuse_all_but_tensors, shown
from flashgen.runtime.declared import Input, Param

DROPOUT_SEED = Input("dropout_seed", torch.int64, (), lambda: (), optional=True)
DROPOUT_P = Param("dropout_p", float)

# Below 1 in float32.
_MOST = 1 - 2**-24
_WORD = 2**32 - 1


def dropout_of(device: torch.device, dropout_p: Any, dropout_seed: Any) -> tuple[torch.Tensor | None, float]:
    """The seed and the probability that a call uses, as its operator takes them: None and 0.0 without dropout.

    `dropout_seed` is a caller's, int64 [] on the device, or None: then torch's generator of the device draws one.
    Raises TypeError or ValueError for a probability that is not one of [0, 1), or a seed that does not fit.
    """
    dropout_p = check_scalar("dropout_p", dropout_p, float)
    if not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p is {shown(dropout_p)}; expected a number from 0 to 1, 1 excluded")
    if dropout_seed is not None:
        if not isinstance(dropout_seed, torch.Tensor):
            raise TypeError(f"dropout_seed is {type(dropout_seed).__name__}; expected a torch.Tensor")
        if dropout_seed.dtype != torch.int64 or dropout_seed.device != device:
            raise TypeError(
                f"dropout_seed is {dropout_seed.dtype} on {dropout_seed.device}; expected int64 on {device}"
            )
        if dropout_seed.ndim:
            raise ValueError(f"dropout_seed has shape {tuple(dropout_seed.shape)}; expected (), one number")
    if dropout_p == 0:
        return None, 0.0
    if dropout_seed is None:
        dropout_seed = torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64, device=device)
    return dropout_seed, min(float(dropout_p), _MOST)


def kept_mask(
    q: torch.Tensor, k: torch.Tensor, cu_seqlens_q: torch.Tensor | None, max_seqlen_q: int | None,
    max_seqlen_k: int | None, dropout_p: Any, dropout_seed: Any,
) -> torch.Tensor:  # fmt: skip
    """dropout_mask() of a variant: bool [batch, heads, q_len, kv_len], the lengths the longest of packed sequences.

    Raises TypeError or ValueError for what attention() or attention_varlen() would not take either.
    """
    batch, heads, q_len, kv_len = _scores_of(q, k, cu_seqlens_q, max_seqlen_q, max_seqlen_k)
    seed, p = dropout_of(q.device, dropout_p, dropout_seed)
    if seed is None:
        return torch.ones((batch, heads, q_len, kv_len), dtype=torch.bool, device=q.device)
    draws = _draws(seed, batch, heads, -(-q_len // 16), -(-kv_len // 16))
    # float32 has p, as it does in the kernels, and no statement asks for its value: torch.compile may not know it.
    dropped = (torch.full((), p, dtype=torch.float32, device=q.device) * 32768).long()
    kept = torch.where(dropped > 16384, draws < 32768 - dropped, draws >= dropped)
    return kept[:, :, :q_len, :kv_len]


def _scores_of(
    q: torch.Tensor, k: torch.Tensor, cu_seqlens_q: torch.Tensor | None, max_seqlen_q: int | None,
    max_seqlen_k: int | None,
) -> tuple[int, int, int, int]:  # fmt: skip
    """The shape of the scores of a call."""
    refuse_all_but_tensors(q=q, k=k)
    packed = cu_seqlens_q is not None
    shape = "[total, heads, head_dim] beside cu_seqlens_q" if packed else "[batch, heads, length, head_dim]"
    for name, tensor in (("q", q), ("k", k)):
        if tensor.ndim != 4 - packed:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {4 - packed} dimensions, {shape}")
    if cu_seqlens_q is None:
        if max_seqlen_q is not None or max_seqlen_k is not None:
            raise TypeError("max_seqlen_q or max_seqlen_k was given without cu_seqlens_q; expected all three or none")
        return q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    refuse_all_but_tensors(cu_seqlens_q=cu_seqlens_q)
    if max_seqlen_q is None or max_seqlen_k is None:
        raise TypeError("max_seqlen_q or max_seqlen_k is None; expected those of attention_varlen beside cu_seqlens_q")
    if cu_seqlens_q.ndim != 1 or not cu_seqlens_q.shape[0]:
        raise ValueError(f"cu_seqlens_q has shape {tuple(cu_seqlens_q.shape)}; expected [batch + 1]")
    return cu_seqlens_q.shape[0] - 1, q.shape[1], max_seqlen_q, max_seqlen_k


def without_dropped(weights: torch.Tensor, kept: torch.Tensor | None, dropout_p: float) -> torch.Tensor:
    """Weights after the softmax as dropout leaves them: those that are kept, by 1 / (1 - dropout_p)."""
    if kept is None:
        return weights
    refuse_all_but_tensors(dropout_mask=kept)
    if kept.dtype != torch.bool or kept.shape != weights.shape:
        raise ValueError(
            f"dropout_mask is {kept.dtype} of shape {tuple(kept.shape)}; expected torch.bool, {tuple(weights.shape)}"
        )
    return torch.where(kept, weights / (1 - dropout_p), 0)


def _draws(seed: torch.Tensor, batch: int, heads: int, q_units: int, k_units: int) -> torch.Tensor:
    """15 bits for each pair, int64 [batch, heads, 16 q_units, 16 k_units]."""

    def numbers(count: int, axis: int) -> torch.Tensor:
        shape = [1] * 4
        shape[axis] = count
        return torch.arange(count, device=seed.device).view(shape)

    key, row_counter, col_counter = _stream(seed, numbers(batch, 0), numbers(heads, 1))
    # A block of bits is for the pairs of rows r, r + 8 and keys c, c + 8: r and c are the places without their bit 3.
    rows, cols = (16 * (place // 8) + place % 8 for place in (numbers(8 * q_units, 2), numbers(8 * k_units, 3)))
    x, y = row_counter + rows * 0x9E3779B9, col_counter + cols * 0x85EBCA6B
    block = torch.broadcast_tensors(*philox2x32(x & _WORD, y & _WORD, key, rounds=5))
    halves = torch.stack([torch.stack([word & 0x7FFF, word >> 16 & 0x7FFF], -1) for word in block], -2)
    # [batch, heads, 8 q_units, 8 k_units, which row, which key] to places along both.
    units = halves.view(batch, heads, q_units, 8, k_units, 8, 2, 2).permute(0, 1, 2, 6, 3, 4, 7, 5)
    return units.reshape(batch, heads, 16 * q_units, 16 * k_units)


def _stream(seed: torch.Tensor, b: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The key and the first counter of head h in sequence b, by Philox4x32-10 of the seed."""
    zero = torch.zeros_like(seed)
    words = philox4x32_10([*torch.broadcast_tensors(b, h), zero, zero], (seed & _WORD, (seed >> 32) & _WORD))
    return words[0], words[1], words[2]


def philox4x32_10(counter: Sequence[torch.Tensor], keys: tuple[torch.Tensor, torch.Tensor]) -> list[torch.Tensor]:
    """The block of a counter of four words."""
    x, y, z, w = counter
    key, other_key = keys
    for _ in range(10):
        (high, low), (other_high, other_low) = _product(x, 0xD2511F53), _product(z, 0xCD9E8D57)
        x, y, z, w = other_high ^ y ^ key, other_low, high ^ w ^ other_key, low
        key, other_key = (key + 0x9E3779B9) & _WORD, (other_key + 0xBB67AE85) & _WORD
    return [x, y, z, w]


def philox2x32(
    x: torch.Tensor, y: torch.Tensor, key: torch.Tensor, rounds: int
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The block of a counter x, y."""
    for _ in range(rounds):
        high, low = _product(x, 0xD256D193)
        x, y = high ^ key ^ y, low
        key = (key + 0x9E3779B9) & _WORD
    return x, y


def _product(x: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The upper and the lower 32 bits of a product of 32 bits each; int64 has all 64, as a signed number."""
    whole = x * factor
    return (whole >> 32) & _WORD, whole & _WORD
