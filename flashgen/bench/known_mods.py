"""Mods of FlexAttention as people write them: what is timed against torch's own.

Each is made for a problem, as a score mod and a mask mod, one of which may be None. Tensors and numbers that a mod
captures stand in its closure, as in the code of those who write them. Those that are learned ask for gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from flashgen.problems.problem import Problem

Mods = tuple[Callable | None, Callable | None]


def _at(length: int, device: str) -> torch.Tensor:
    return torch.arange(length, device=device)


def _random(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(shape, device=device, generator=torch.Generator(device).manual_seed(0))


def _slopes(problem: Problem, device: str) -> torch.Tensor:
    return torch.exp2(-8.0 * (_at(problem.heads, device) + 1) / problem.heads)


def _causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def causal(problem: Problem, device: str) -> Mods:
    return None, _causal


def sliding_window(problem: Problem, device: str) -> Mods:
    window = 1024

    def mask(b, h, q, k):  # type: ignore[no-untyped-def]
        return (q >= k) & (q - k < window)

    return None, mask


def prefix(problem: Problem, device: str) -> Mods:
    length = 1024

    def mask(b, h, q, k):  # type: ignore[no-untyped-def]
        return (k < length) | (q >= k)

    return None, mask


def chunks(problem: Problem, device: str) -> Mods:
    length = 1024

    def mask(b, h, q, k):  # type: ignore[no-untyped-def]
        return (q // length == k // length) & (q >= k)

    return None, mask


def documents(problem: Problem, device: str) -> Mods:
    """Eight documents of one length."""
    document = _at(problem.kv_len, device) // (problem.kv_len // 8)

    def mask(b, h, q, k):  # type: ignore[no-untyped-def]
        return (document[q] == document[k]) & (q >= k)

    return None, mask


def neighbourhood(problem: Problem, device: str) -> Mods:
    """Of pixels in an image."""
    width = 64

    def mask(b, h, q, k):  # type: ignore[no-untyped-def]
        return ((q // width - k // width).abs() <= 6) & ((q % width - k % width).abs() <= 6)

    return None, mask


def alibi(problem: Problem, device: str) -> Mods:
    slopes = _slopes(problem, device)

    def score_mod(score, b, h, q, k):  # type: ignore[no-untyped-def]
        return score - slopes[h] * (q - k)

    return score_mod, _causal


def kerple(problem: Problem, device: str) -> Mods:
    slopes, rate = _slopes(problem, device), 0.1

    def score_mod(score, b, h, q, k):  # type: ignore[no-untyped-def]
        return score - slopes[h] * torch.log1p(rate * (q - k).abs())

    return score_mod, _causal


def softcap(problem: Problem, device: str) -> Mods:
    cap = 30.0

    def score_mod(score, b, h, q, k):  # type: ignore[no-untyped-def]
        return cap * torch.tanh(score / cap)

    return score_mod, _causal


def relative(problem: Problem, device: str) -> Mods:
    """A bias for each distance up to 128, and one for all that are further."""
    table = _random(device, problem.heads, 257)

    def score_mod(score, b, h, q, k):  # type: ignore[no-untyped-def]
        return score + table[h, (q - k).clamp(-128, 128) + 128]

    return score_mod, None


def buckets(problem: Problem, device: str) -> Mods:
    """Raffel et al., arXiv:1910.10683, as its authors' code has it: 16 buckets a side, exact below 8."""
    of_bucket = _random(device, 32, problem.heads)

    def score_mod(score, b, h, q, k):  # type: ignore[no-untyped-def]
        far = (q - k).abs()
        large = 8 + (torch.log(far.float() / 8) / math.log(128 / 8) * 8).to(torch.int32)
        near = torch.where(far < 8, far, large.clamp(max=15))
        return score + of_bucket[torch.where(k > q, 16, 0) + near, h]

    return score_mod, None


def pairs(problem: Problem, device: str) -> Mods:
    """A bias for each pair."""
    of_pair = _random(device, problem.heads, problem.q_len, problem.kv_len).to(torch.bfloat16)

    def score_mod(score, b, h, q, k):  # type: ignore[no-untyped-def]
        return score + of_pair[h, q, k]

    return score_mod, None


def learned_slopes(problem: Problem, device: str) -> Mods:
    """ALiBi whose slopes are learned."""
    slopes = _slopes(problem, device).requires_grad_()

    def score_mod(score, b, h, q, k):  # type: ignore[no-untyped-def]
        return score - slopes[h] * (q - k)

    return score_mod, _causal


def learned_pairs(problem: Problem, device: str) -> Mods:
    """A learned bias for each pair."""
    of_pair = _random(device, problem.heads, problem.q_len, problem.kv_len).to(torch.bfloat16).requires_grad_()

    def score_mod(score, b, h, q, k):  # type: ignore[no-untyped-def]
        return score + of_pair[h, q, k]

    return score_mod, None


def learned(mod: Callable | None) -> tuple[torch.Tensor, ...]:
    """The tensors in a mod's closure that ask for gradients."""
    found = (cell.cell_contents for cell in getattr(mod, "__closure__", None) or ())
    return tuple(each for each in found if isinstance(each, torch.Tensor) and each.requires_grad)


MODS: Mapping[str, Callable[[Problem, str], Mods]] = {
    make.__name__: make
    for make in (
        causal, sliding_window, prefix, chunks, documents, neighbourhood, alibi, kerple, softcap, relative, buckets,
        pairs, learned_slopes, learned_pairs,
    )
}  # fmt: skip
