"""Pixels of an image attend to those around them (Hassani et al., "Neighborhood Attention Transformer",
arXiv:2204.07143): the query's window is moved inward at the edges, so that all have as many keys.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH, KERNEL = (64, 13) if DEVICE == "cuda" else (12, 5)


def neighbourhood(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    q_row, q_column = q_idx // WIDTH, q_idx % WIDTH
    row, column = kv_idx // WIDTH, kv_idx % WIDTH
    middle_row = q_row.clamp(KERNEL // 2, WIDTH - 1 - KERNEL // 2)
    middle_column = q_column.clamp(KERNEL // 2, WIDTH - 1 - KERNEL // 2)
    return ((middle_row - row).abs() <= KERNEL // 2) & ((middle_column - column).abs() <= KERNEL // 2)


def main() -> Tensor:
    torch.manual_seed(0)
    pixels = WIDTH * WIDTH
    q, k, v = (torch.randn(1, 4, pixels, 32, device=DEVICE) for _ in "qkv")
    mask = create_block_mask(neighbourhood, None, None, pixels, pixels, device=DEVICE)
    return flex_attention(q, k, v, block_mask=mask)


if __name__ == "__main__":
    print(f"neighbourhood: mean of squares {main().square().mean():.6f}")
