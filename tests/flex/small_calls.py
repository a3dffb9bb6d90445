"""A small call of flex_attention beside torch's own."""

from __future__ import annotations

from typing import Any

import torch
from flex_beside_torch import by_torch
from torch.nn.attention.flex_attention import create_block_mask

from flashgen.flex import flex_attention

LENGTH = 24
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, LENGTH, 16, generator=generator).to(DEVICE) for _ in range(3)]


def is_right(score: Any, mask: Any = None) -> None:
    q, k, v = inputs()
    blocks = None if mask is None else create_block_mask(mask, 1, 2, LENGTH, LENGTH, device=DEVICE, BLOCK_SIZE=16)
    expected = by_torch(score, mask)(q.double(), k.double(), v.double())
    found = flex_attention(q, k, v, score, blocks)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
