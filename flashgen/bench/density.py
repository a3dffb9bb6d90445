"""How many of the (query, key) pairs a variant's mask leaves visible, counted exactly."""

from __future__ import annotations

from flashgen.codegen.pairwise import Pairwise
from flashgen.problems import Problem

# Elements of the mask held at once: their integer temporaries take eight bytes each.
CHUNK = 1 << 26


def density(pairwise: Pairwise, problem: Problem, device: str) -> float:
    """The visible share of the batch * heads * q_len * kv_len pairs; memory stays bounded at any length."""
    import torch

    b = torch.arange(problem.batch, device=device)[:, None, None, None]
    h = torch.arange(problem.heads, device=device)[None, :, None, None]
    k = torch.arange(problem.kv_len, device=device)[None, :]
    rows = max(1, CHUNK // (problem.batch * problem.heads * problem.kv_len))
    visible = 0.0
    for start in range(0, problem.q_len, rows):
        q = torch.arange(start, min(start + rows, problem.q_len), device=device)[:, None]
        # A mask that ignores the batch, the heads or a position comes back smaller: its mean is the same.
        visible += pairwise.mask(b, h, q, k).double().mean().item() * len(q)
    return visible / problem.q_len
