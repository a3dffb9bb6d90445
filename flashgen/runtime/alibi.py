"""The slopes of ALiBi (Press, Smith and Lewis 2021, arXiv:2108.12409, section 3)."""

from __future__ import annotations

from functools import lru_cache

import torch


@lru_cache(maxsize=64)
def alibi_slopes(heads: int, device: torch.device) -> torch.Tensor:
    """One slope for each head, float32 [heads]: 2 ** (-8 i / n) for i = 1..n where n is a power of two.

    Otherwise the slopes of the power of two below, then every other slope of the one above, as in the paper's code.
    """
    below = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * i / below) for i in range(1, below + 1)]
    slopes += [2.0 ** (-8 * i / (2 * below)) for i in range(1, 2 * (heads - below), 2)]
    return torch.tensor(slopes, dtype=torch.float32, device=device)
