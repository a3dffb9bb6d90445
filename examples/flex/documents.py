"""Packed documents of which none sees another, by a wrapper that makes a mask within documents of any mask."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTHS = (700, 1, 1500, 900, 995) if DEVICE == "cuda" else (20, 1, 50, 29)

Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def causal(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return q_idx >= kv_idx


def within_documents(inner: Mask, lengths: Tensor) -> Mask:
    """The inner mask at positions counted from the beginning of each document."""
    starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    document = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)

    def mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        same = document[q_idx] == document[kv_idx]
        return same & inner(b, h, q_idx - starts[document[q_idx]], kv_idx - starts[document[kv_idx]])

    return mask


def main() -> Tensor:
    torch.manual_seed(0)
    total = sum(LENGTHS)
    q, k, v = (torch.randn(1, 4, total, 32, device=DEVICE) for _ in "qkv")
    mask_mod = within_documents(causal, torch.tensor(LENGTHS, device=DEVICE))
    mask = create_block_mask(mask_mod, None, None, total, total, device=DEVICE)
    return flex_attention(q, k, v, block_mask=mask)


if __name__ == "__main__":
    print(f"documents: mean of squares {main().square().mean():.6f}")
