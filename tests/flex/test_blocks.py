"""Block masks whose blocks were listed by hand: when they are read, and for how long what is made of them is kept."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask

from flashgen.flex import flex_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LISTED = torch.tensor([[0], [1], [0]], dtype=torch.int32, device=DEVICE)
FULL = torch.tensor([[1], [0], [2]], dtype=torch.int32, device=DEVICE)


def blocks(mask: Any, *, with_full: bool = False) -> BlockMask:
    """One block of each row where `mask` holds; another that is full."""
    ones = torch.ones(1, 1, 3, dtype=torch.int32, device=DEVICE)
    full = (ones, FULL[None, None]) if with_full else ()
    return BlockMask.from_kv_blocks(
        ones, LISTED[None, None], *full, BLOCK_SIZE=16, mask_mod=mask, seq_lengths=(48, 48), compute_q_blocks=False
    )


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, 48, 16, generator=generator).to(DEVICE).requires_grad_() for _ in range(3)]


class Step:
    """What a server makes of each step: a mask that reads it, and the blocks of that mask."""

    def __init__(self, first: int) -> None:
        self.first = torch.tensor(first, device=DEVICE)
        self.blocks = blocks(lambda b, h, q, k: q + self.first >= k)


def test_a_block_mask_that_its_own_mask_has_goes() -> None:
    steps = [Step(each) for each in range(3)]
    for step in steps:
        flex_attention(*inputs(), None, step.blocks)
    gone = [weakref.ref(step.blocks) for step in steps]
    del step, steps
    gc.collect()
    assert [each() for each in gone] == [None] * 3
