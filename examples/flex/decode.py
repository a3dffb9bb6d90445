"""A decode loop over a cache of fixed size: the mask reads from a tensor how much of it is filled, in each sequence."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROOM, STEPS = (4096, 20) if DEVICE == "cuda" else (96, 4)
BATCH, HEADS, KV_HEADS, DIM = 2, 4, 2, 32
WINDOW = ROOM // 3

filled = torch.tensor([ROOM // 2, 5], device=DEVICE)


def in_window(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    position = q_idx + filled[b] - 1
    return (kv_idx <= position) & (kv_idx > position - WINDOW)


def main() -> Tensor:
    """What each step attends to, [STEPS, BATCH, HEADS, 1, DIM]."""
    torch.manual_seed(0)
    filled.copy_(torch.tensor([ROOM // 2, 5]))
    k_cache, v_cache = (torch.randn(BATCH, KV_HEADS, ROOM, DIM, device=DEVICE) for _ in "kv")
    sequences, outs = torch.arange(BATCH, device=DEVICE), []
    q = torch.randn(BATCH, HEADS, 1, DIM, device=DEVICE)
    for _ in range(STEPS):
        # The new token's key and value stand behind the last.
        k_cache[sequences, :, filled] = q[:, :KV_HEADS, 0]
        v_cache[sequences, :, filled] = q[:, KV_HEADS:, 0]
        filled.add_(1)
        mask = create_block_mask(in_window, BATCH, None, 1, ROOM, device=DEVICE)
        out = flex_attention(q, k_cache, v_cache, block_mask=mask, enable_gqa=True)
        outs.append(out)
        q = torch.nn.functional.normalize(out + q, dim=-1) * DIM**0.5
    return torch.stack(outs)


if __name__ == "__main__":
    print(f"decode: mean of squares {main().square().mean():.6f}")
