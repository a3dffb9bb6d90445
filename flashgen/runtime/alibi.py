"""The slopes of ALiBi (Press, Smith and Lewis 2021, arXiv:2108.12409, section 3)."""

from __future__ import annotations

import torch

_made: dict[tuple[int, torch.device], torch.Tensor] = {}


def alibi_slopes(heads: int, device: torch.device) -> torch.Tensor:
    """One slope for each head, float32 [heads]: 2 ** (-8 i / n) for i = 1..n where n is a power of two.

    Otherwise the slopes of the power of two below, then every other slope of the one above, as in the paper's code.
    """
    if not isinstance(heads, int):  # symbolic, while torch traces shapes alone
        return torch.empty(heads, dtype=torch.float32, device=device)
    made = _made.get((heads, device))
    if made is None:
        made = torch.tensor(_slopes(heads), dtype=torch.float32, device=device)
        if type(made) is torch.Tensor:  # no stand-in of one, as tracing makes them
            _made[heads, device] = made
    return made


def _slopes(heads: int) -> list[float]:
    below = 1 << heads.bit_length() >> 1
    slopes = [2.0 ** (-8 * i / below) for i in range(1, below + 1)]
    return slopes + [2.0 ** (-8 * i / (2 * below)) for i in range(1, 2 * (heads - below), 2)]
