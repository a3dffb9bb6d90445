"""Packed sequences for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from flashgen.problems.problem import Problem
from flashgen.verify import Case


@dataclass(frozen=True)
class Packed:
    """q, k and v of sequences one after the other, and where they end."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    lengths: tuple[tuple[int, int], ...]

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.q, self.k, self.v

    @property
    def ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        q_ends, k_ends = (self._of(side) for side in (0, 1))
        return q_ends, k_ends

    @property
    def longest(self) -> tuple[int, int]:
        return max(1, *(own[0] for own in self.lengths)), max(1, *(own[1] for own in self.lengths))

    @property
    def arguments(self) -> tuple[torch.Tensor | int, ...]:
        return (*self.tensors, *self.ends, *self.longest)

    def slices(self, number: int) -> tuple[slice, slice, slice]:
        """Where a sequence lies in q, k and v."""
        rows, keys = (slice(*ends[number : number + 2].tolist()) for ends in self.ends)
        return rows, keys, keys

    def all_nan_but(self, number: int) -> list[torch.Tensor]:
        """q, k and v with NaN for all other sequences."""
        found = [torch.full_like(each, torch.nan) for each in self.tensors]
        for tensor, whole, own in zip(found, self.tensors, self.slices(number), strict=True):
            tensor[own] = whole[own]
        return found

    def _of(self, side: int) -> torch.Tensor:
        return torch.tensor(
            [0, *accumulate(own[side] for own in self.lengths)], dtype=torch.int32, device=self.q.device
        )


def make_packed(
    lengths: Sequence[tuple[int, int]], *, heads: int = 4, kv_heads: int = 2, head_dim: int = 16, v_head_dim: int = 16,
    dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0,
) -> Packed:  # fmt: skip
    """Random sequences of so many queries and keys."""
    generator = torch.Generator(device).manual_seed(seed)
    total_q, total_k = (sum(own[side] for own in lengths) for side in (0, 1))
    shapes = ((total_q, heads, head_dim), (total_k, kv_heads, head_dim), (total_k, kv_heads, v_head_dim))
    q, k, v = (torch.randn(shape, generator=generator, device=device).to(dtype) for shape in shapes)
    return Packed(q, k, v, tuple(lengths))


def packed_case(name: str, lengths: Sequence[tuple[int, int]], **sizes: int | str) -> Case:
    """A case of verify for sequences of these lengths, over 4 heads of 2 unless `sizes` say otherwise."""
    longest = [max(own[side] for own in lengths) for side in (0, 1)]
    given = {"heads": 4, "kv_heads": 2, "head_dim": 32, "v_head_dim": 32, "dtype": "float32", **sizes}
    problem = Problem(batch=len(lengths), q_len=longest[0], kv_len=longest[1], **given)
    return Case(name, problem, lengths=tuple(lengths))
