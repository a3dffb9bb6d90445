"""What a problem takes at least: the pairs that its mask leaves visible, counted exactly, operations and traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flashgen.codegen.pairwise import SIZES, Pairwise, make
from flashgen.problems.problem import Problem
from flashgen.runtime.kernels.portable import ITEMSIZE
from flashgen.spec.variant import Variant

# Rows and columns of the square matrix product that stands for what a GPU can reach.
CEILING_SIZE = 8192

# Elements of the mask held at once: their integer temporaries take eight bytes each.
CHUNK = 1 << 26


def visible_share(variant: Variant, problem: Problem, arguments: Mapping[str, Any], device: str) -> float:
    """The visible share of the pairs of each sequence.

    `arguments` are inputs and params for the whole batch, none of it packed.
    """
    if not problem.packed:
        return density(make(variant, _sizes(problem), arguments), problem, device)
    return sum(_visible(variant, problem, b, arguments, device) for b in range(problem.batch)) / _pairs(problem)


def _visible(variant: Variant, problem: Problem, b: int, arguments: Mapping[str, Any], device: str) -> float:
    """The visible pairs of one packed sequence, a head's on average."""
    q_len, kv_len = problem.lengths[b]
    alone = replace(problem, batch=1, q_len=q_len, kv_len=kv_len, mode="dense")
    pairwise = make(variant, {**_sizes(alone), "batch": problem.batch}, arguments)
    own = replace(pairwise, mask=lambda first, h, q, k: pairwise.mask(first + b, h, q, k))
    return density(own, alone, device) * q_len * kv_len


def _pairs(problem: Problem) -> int:
    """Pairs of a query and a key of one sequence, visible or not, a head's."""
    if problem.packed:
        return sum(queries * keys for queries, keys in problem.lengths)
    return problem.batch * problem.q_len * problem.kv_len


def _sizes(problem: Problem) -> dict[str, int]:
    return {name: getattr(problem, name) for name in SIZES}


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


# Matrix products over pairs that a kernel cannot do without, along head_dim and along v_head_dim: the forward has the
# scores and the output; dQ takes the scores, dP and itself; the whole backward dK and dV too.
_ALIKE = ("forward", "decode", "decode_paged")
PRODUCTS = {**dict.fromkeys(_ALIKE, (1, 1)), "backward_q": (2, 1), "backward_kv": (3, 2)}
# Numbers of tensors that it must read or write: of queries by head_dim and by v_head_dim, of keys by either. The
# forward has q and out, the backward q, dO and dQ; keys have k and v, in the whole backward their gradients too.
TENSORS = {**dict.fromkeys(_ALIKE, ((1, 1), (1, 1))), "backward_q": ((2, 1), (1, 1)), "backward_kv": ((2, 1), (2, 2))}


def useful_flops(problem: Problem, density: float, kernel: str = "forward") -> float:
    """Floating-point operations of the matrix products over the visible pairs alone.

    "backward_kv" stands for the whole backward, dQ included.
    """
    pairs = problem.heads * _pairs(problem) * density
    along, along_v = PRODUCTS[kernel]
    return 2 * pairs * (along * problem.head_dim + along_v * problem.v_head_dim)


def least_bytes(problem: Problem, kernel: str = "forward") -> float:
    """Bytes that must be read or written once whatever the kernel does."""
    queries, keys = problem.tokens
    rows = problem.heads * queries, problem.kv_heads * keys
    # A cache that has a dtype of its own has 8 bits.
    sizes = ITEMSIZE[problem.dtype], 1 if problem.cache else ITEMSIZE[problem.dtype]
    return float(sum(
        count * (along * problem.head_dim + along_v * problem.v_head_dim) * size
        for count, size, (along, along_v) in zip(rows, sizes, TENSORS[kernel], strict=True)
    ))  # fmt: skip
