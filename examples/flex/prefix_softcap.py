"""A prefix of another length in each sequence, which sees itself whole, before causal text (Raffel et al.,
arXiv:1910.10683, section 3.2.1); scores softly capped (Gemma 2, arXiv:2408.00118, section 2) and biased by ALiBi.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import and_masks, create_block_mask, flex_attention, or_masks

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTH, HEADS, CAP = (4096, 8, 20.0) if DEVICE == "cuda" else (90, 4, 20.0)
PREFIX = torch.tensor([LENGTH // 2, 7], device=DEVICE)
USED = torch.tensor([LENGTH, LENGTH - 30], device=DEVICE)
SLOPES = torch.exp2(-8 * torch.arange(1, HEADS + 1, device=DEVICE) / HEADS)


def prefix(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return kv_idx < PREFIX[b]


def causal(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return q_idx >= kv_idx


def used(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return kv_idx < USED[b]


def capped(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return CAP * torch.tanh(score / CAP) - SLOPES[h] * (q_idx - kv_idx).abs()


def main() -> Tensor:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, LENGTH, 32, device=DEVICE) for heads in (HEADS, HEADS // 2, HEADS // 2))
    mask_mod = and_masks(or_masks(prefix, causal), used)
    mask = create_block_mask(mask_mod, 2, None, LENGTH, LENGTH, device=DEVICE)
    return flex_attention(q, k, v, capped, mask, enable_gqa=True)


if __name__ == "__main__":
    print(f"prefix_softcap: mean of squares {main().square().mean():.6f}")
