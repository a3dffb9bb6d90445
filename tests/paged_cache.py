"""Paged caches for tests: pages in random order, what stands behind the ends of sequences garbage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from flashgen.lang.nodes import variables
from flashgen.problems import Call, Problem, make_inputs
from flashgen.spec.variant import Variant
from flashgen.verify.budget import Verdict, judge

QUANTISED = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)


@dataclass(frozen=True)
class Batch:
    """Sequences with their keys in pages and, for a reference, as they are; `kv_lens` and `q_lens` by sequence.

    `keys` and `values` [length, kv_heads, head_dim], what the cache's numbers stand for.
    """

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_table: torch.Tensor
    kv_lens: tuple[int, ...]
    q_lens: tuple[int, ...]
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    scales: Mapping[str, torch.Tensor]

    @property
    def seq_lens(self) -> torch.Tensor:
        return torch.tensor(self.kv_lens, dtype=torch.int32, device=self.q.device)

    @property
    def cu_seqlens_q(self) -> torch.Tensor | None:
        if all(length == 1 for length in self.q_lens):
            return None
        ends = torch.tensor([0, *self.q_lens]).cumsum(0)
        return ends.to(self.q.device, torch.int32)

    @property
    def arguments(self) -> tuple[torch.Tensor, ...]:
        return self.q, self.k_cache, self.v_cache, self.block_table, self.seq_lens

    @property
    def options(self) -> dict[str, Any]:
        return {"cu_seqlens_q": self.cu_seqlens_q, "max_seqlen_q": max(1, *self.q_lens), **self.scales}


def make_batch(
    kv_lens: Sequence[int], q_lens: Sequence[int] | None = None, *, heads: int = 4, kv_heads: int = 2,
    head_dim: int = 16, v_head_dim: int = 16, block_size: int = 16, dtype: torch.dtype = torch.float32,
    cache: torch.dtype | None = None, scales: str = "none", by_head: bool = False, device: str = "cpu", seed: int = 0,
) -> Batch:  # fmt: skip
    """A batch whose unused slots hold NaN, or the cache's largest number, and whose table has garbage behind the ends.

    `scales` is "none", "one", "head" or "token"; `by_head`: the heads of a page lie one after the other.
    """
    torch.manual_seed(seed)
    q_lens = [1] * len(kv_lens) if q_lens is None else q_lens
    cache = dtype if cache is None else cache
    counts = [-(-length // block_size) for length in kv_lens]
    num_blocks = sum(counts) + 3
    order = torch.randperm(num_blocks)
    table = torch.randint(-9, num_blocks + 9, (len(kv_lens), max(1, *counts) + 1), dtype=torch.int32)
    for b, count in enumerate(counts):
        table[b, :count] = order[sum(counts[:b]) : sum(counts[: b + 1])].int()
    caches, contents, given = [], [], {}
    for name, dim in (("k_scale", head_dim), ("v_scale", v_head_dim)):
        scale = _scale(scales, num_blocks, block_size, kv_heads)
        numbers = (torch.randn(num_blocks, block_size, kv_heads, dim) * (40 if cache == torch.int8 else 1)).to(cache)
        meant = numbers.to(torch.float32) * (1 if scale is None else _over_slots(scale)[..., None])
        contents.append([
            meant[table[b, :count].long()].flatten(0, 1)[:length]
            for b, (count, length) in enumerate(zip(counts, kv_lens, strict=True))
        ])  # fmt: skip
        caches.append(_spoilt(numbers, table, kv_lens, block_size))
        if scale is not None:
            given[name] = scale.to(device)
    k_cache, v_cache = (each.to(device) for each in caches)
    if by_head:
        k_cache, v_cache = (each.transpose(1, 2).contiguous().transpose(1, 2) for each in (k_cache, v_cache))
    q = torch.randn(sum(q_lens), heads, head_dim).to(device, dtype)
    keys, values = (tuple(x.to(device) for x in each) for each in contents)
    return Batch(q, k_cache, v_cache, table.to(device), tuple(kv_lens), tuple(q_lens), keys, values, given)


def _scale(kind: str, num_blocks: int, block_size: int, kv_heads: int) -> torch.Tensor | None:
    if kind == "none":
        return None
    shape = {"one": (), "head": (kv_heads,), "token": (num_blocks, block_size, kv_heads)}[kind]
    return torch.rand(shape) * 0.05 + 0.01


def _over_slots(scale: torch.Tensor) -> torch.Tensor:
    return scale if scale.ndim == 3 else scale[None, None] if scale.ndim else scale[None, None, None]


def _spoilt(numbers: torch.Tensor, table: torch.Tensor, kv_lens: Sequence[int], block_size: int) -> torch.Tensor:
    """The cache with garbage in each slot that no sequence has."""
    used = torch.zeros(numbers.shape[:2], dtype=torch.bool)
    for b, length in enumerate(kv_lens):
        for place in range(length):
            used[table[b, place // block_size], place % block_size] = True
    garbage = torch.full_like(numbers.to(torch.float32), float("nan"))
    if numbers.dtype == torch.int8:
        garbage = torch.full_like(garbage, 127)
    return torch.where(used[..., None, None], numbers.to(torch.float32), garbage).to(numbers.dtype)


def paged_inputs(variant: Variant, batch: Batch, longest: int) -> Call:
    """Inputs of the variant for the whole batch, with the longest lengths; none of it is packed along queries."""
    dims = batch.keys[0].shape[-1], batch.values[0].shape[-1]
    problem = Problem(
        len(batch.kv_lens), batch.q.shape[1], batch.k_cache.shape[2], max(batch.q_lens), longest, *dims, "float32"
    )
    return make_inputs(variant, problem, str(batch.q.device), 0)


def inputs_of(variant: Variant, call: Call, b: int, q_len: int, kv_len: int) -> dict[str, Any]:
    """Those of one sequence: its batch element, lengths cut down to its own."""
    found = dict(call.keywords)
    for tensor in variant.inputs:
        for axis, dim in enumerate(tensor.dims):
            names = variables(dim.size)
            whole = found[tensor.name]
            if "batch" in names:
                found[tensor.name] = whole.narrow(axis, b, 1)
            elif names & {"q_len", "kv_len"}:
                longest = whole.shape[axis]
                size = q_len if "q_len" in names else kv_len
                # A dimension of blocks has as many as the lengths fill.
                block = 128 if tensor.name == "block_mask" else 1
                found[tensor.name] = whole.narrow(axis, 0, min(longest, -(-size // block)))
    return found


def verdicts(
    module: ModuleType, variant: Variant, batch: Batch, out: torch.Tensor, lse: torch.Tensor, call: Call
) -> list[Verdict]:
    """What verify says of each sequence's rows; a sequence without keys has none, and its rows are 0."""
    found, end = [], 0
    for b, (q_len, kv_len) in enumerate(zip(batch.q_lens, batch.kv_lens, strict=True)):
        start, end = end, end + q_len
        own_out, own_lse = out[start:end].transpose(0, 1)[None], lse[:, start:end][None]
        if not kv_len or not q_len:
            assert torch.all(own_out == 0)
            assert torch.all(own_lse == -torch.inf)
            continue
        q = batch.q[start:end].transpose(0, 1)[None]
        k, v = (each[b].transpose(0, 1)[None] for each in (batch.keys, batch.values))
        own = Call(q, k, v, inputs=inputs_of(variant, call, b, q_len, kv_len))
        found.append(judge(own_out, own_lse, own, module.reference))
    return found
