"""What a problem takes at least: the pairs that its mask leaves visible, counted exactly, operations and traffic."""

from __future__ import annotations

from flashgen.codegen.pairwise import Pairwise
from flashgen.problems import Problem

ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4}

# Rows and columns of the square matrix product that stands for what a GPU can reach.
CEILING_SIZE = 8192

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


def useful_flops(problem: Problem, density: float) -> float:
    """Floating-point operations of the two matrix products over the visible pairs alone."""
    pairs = problem.batch * problem.heads * problem.q_len * problem.kv_len * density
    return 2 * pairs * (problem.head_dim + problem.v_head_dim)


def least_bytes(problem: Problem) -> float:
    """Bytes of q, k, v and the output: what must be read or written once whatever the kernel does."""
    dims = problem.head_dim + problem.v_head_dim
    rows = problem.batch * (problem.heads * problem.q_len + problem.kv_heads * problem.kv_len)
    return float(rows * dims * ITEMSIZE[problem.dtype])
