"""Random sequences in a paged cache, the same for proof, tuning and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flashgen.analysis.packed import is_along_queries
from flashgen.lang.variables import BATCH, Q_LEN
from flashgen.problems.calls import Own, draw_own
from flashgen.problems.elements import cut_down
from flashgen.problems.problem import Problem
from flashgen.problems.sizes import input_sizes
from flashgen.spec.keywords import keywords_of
from flashgen.spec.variant import Input, Variant

# How the scales of a cache of 8 bits are given: not at all, one number, one a head, one a token and head.
SCALES = ("none", "one", "head", "token")


@dataclass(frozen=True)
class Batch:
    """Sequences whose keys lie in pages; `kv_lens` and `q_lens` are their lengths.

    q [total_q, heads, head_dim]; k_cache and v_cache [num_blocks, block_size, kv_heads, head_dim]; block_table int32
    [batch, max_blocks]. `scales` has k_scale and v_scale, float32, of a cache that has them.
    """

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_table: torch.Tensor
    kv_lens: tuple[int, ...]
    q_lens: tuple[int, ...]
    scales: Mapping[str, torch.Tensor]

    @property
    def seq_lens(self) -> torch.Tensor:
        return torch.tensor(self.kv_lens, dtype=torch.int32, device=self.q.device)

    @property
    def cu_seqlens_q(self) -> torch.Tensor | None:
        """int32 [batch + 1]; None where every sequence has one query."""
        if all(length == 1 for length in self.q_lens):
            return None
        return torch.tensor(self.query_ends, dtype=torch.int32, device=self.q.device)

    @property
    def query_ends(self) -> tuple[int, ...]:
        """Where the queries of each sequence begin, and where the last end."""
        return tuple(sum(self.q_lens[:b]) for b in range(len(self.q_lens) + 1))

    @property
    def longest(self) -> int:
        """How many keys a row of the table has room for."""
        return self.block_table.shape[1] * self.k_cache.shape[1]

    @property
    def arguments(self) -> tuple[torch.Tensor, ...]:
        """The arguments of attention_paged() in their order."""
        return self.q, self.k_cache, self.v_cache, self.block_table, self.seq_lens

    @property
    def queries(self) -> dict[str, Any]:
        """What attention_paged() and plan_paged() are told of the queries."""
        return {"cu_seqlens_q": self.cu_seqlens_q, "max_seqlen_q": max(1, *self.q_lens)}

    @property
    def planning(self) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
        """The arguments of plan_paged() for a call of attention_paged(), in their order and by name."""
        given = (self.q, self.k_cache, self.block_table, self.seq_lens)
        return given, {**self.queries, "v_head_dim": self.v_cache.shape[3]}

    @property
    def options(self) -> dict[str, Any]:
        """The further arguments of attention_paged()."""
        return {**self.queries, **self.scales}

    def sequence(self, b: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v of one sequence as attention() takes them, k and v in float32: what the cache's numbers mean."""
        q = self.q[self.query_ends[b] : self.query_ends[b + 1]]
        k = self._meant(b, self.k_cache, self.scales.get("k_scale"))
        v = self._meant(b, self.v_cache, self.scales.get("v_scale"))
        return q.transpose(0, 1)[None], k, v

    def _meant(self, b: int, cache: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
        """[1, kv_heads, length, head_dim] of a cache."""
        length, block_size = self.kv_lens[b], cache.shape[1]
        pages = self.block_table[b, : -(-length // block_size)].long()
        found = cache[pages].to(torch.float32)
        if scale is not None:
            found = found * (scale[pages] if scale.ndim == 3 else scale.expand(cache.shape[2]))[..., None]
        return found.flatten(0, 1)[:length].transpose(0, 1)[None]


def make_batch(
    kv_lens: Sequence[int], q_lens: Sequence[int] | None = None, *, heads: int = 4, kv_heads: int = 2,
    head_dim: int = 16, v_head_dim: int = 16, block_size: int = 16, dtype: torch.dtype = torch.float32,
    cache: torch.dtype | None = None, scales: str = "none", by_head: bool = False, spoilt: bool = True,
    device: str | torch.device = "cpu", seed: int = 0,
) -> Batch:  # fmt: skip
    """Draw a batch with pages in random order; one query a sequence where `q_lens` is None.

    q, k and v are standard normal before they are rounded to `dtype` and to the dtype of the `cache`. `by_head`: the
    heads of a page lie one after the other. `spoilt`: slots that no sequence has hold NaN, or the largest number of a
    cache without NaN, and the table has garbage behind the ends.
    """
    generator = torch.Generator(device).manual_seed(seed)
    q_lens, cache = q_lens or [1] * len(kv_lens), cache or dtype
    counts = _pages(kv_lens, block_size)
    num_blocks = sum(counts) + 3
    table = _table(counts, num_blocks, spoilt, generator)
    caches, given = [], {}
    for name, dim in (("k_scale", head_dim), ("v_scale", v_head_dim)):
        shape = (num_blocks, block_size, kv_heads, dim)
        numbers = _normal(shape, generator, torch.float16 if cache.itemsize == 1 else cache)
        numbers = (numbers if cache.is_floating_point else numbers * 40).to(cache)
        if spoilt:
            numbers = _spoilt(numbers, table, kv_lens)
        caches.append(numbers.transpose(1, 2).contiguous().transpose(1, 2) if by_head else numbers)
        if scales != "none":
            sizes: dict[str, tuple[int, ...]] = {"one": (), "head": (kv_heads,), "token": shape[:3]}
            given[name] = torch.rand(sizes[scales], generator=generator, device=device) * 0.05 + 0.01
    q = _normal((sum(q_lens), heads, head_dim), generator, dtype)
    k_cache, v_cache = caches
    return Batch(q, k_cache, v_cache, table, tuple(kv_lens), tuple(q_lens), given)


def room(kv_lens: Sequence[int], block_size: int, spoilt: bool = True) -> int:
    """For how many keys a row of the table of such a batch has room: `Batch.longest`."""
    return _columns(_pages(kv_lens, block_size), spoilt) * block_size


def _pages(kv_lens: Sequence[int], block_size: int) -> list[int]:
    return [-(-length // block_size) for length in kv_lens]


def _columns(counts: Sequence[int], spoilt: bool) -> int:
    return max(1, *counts) + spoilt


def _normal(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=generator, device=generator.device, dtype=dtype)


def _table(counts: Sequence[int], num_blocks: int, spoilt: bool, generator: torch.Generator) -> torch.Tensor:
    """Each sequence's pages, in random order; behind them numbers that may be those of no page."""
    device = generator.device
    room = len(counts), _columns(counts, spoilt)
    table = torch.randint(-9, num_blocks + 9, room, generator=generator, device=device, dtype=torch.int32)
    order = torch.randperm(num_blocks, generator=generator, device=device).int()
    end = 0
    for b, count in enumerate(counts):
        start, end = end, end + count
        table[b, :count] = order[start:end]
    return table


def _spoilt(numbers: torch.Tensor, table: torch.Tensor, kv_lens: Sequence[int]) -> torch.Tensor:
    """The cache with garbage in each slot that no sequence has."""
    block_size = numbers.shape[1]
    used = torch.zeros(numbers.shape[0] * block_size, dtype=torch.bool, device=numbers.device)
    slots = torch.arange(block_size, device=numbers.device)
    for b, length in enumerate(kv_lens):
        pages = table[b, : -(-length // block_size)].long()
        used[(pages[:, None] * block_size + slots).flatten()[:length]] = True
    garbage = float("nan") if numbers.dtype.is_floating_point else torch.iinfo(numbers.dtype).max
    kept = used.reshape(numbers.shape[:2])[..., None, None]
    return torch.where(kept, numbers.to(torch.float32), garbage).to(numbers.dtype)


def batch_of(
    problem: Problem, device: str | torch.device = "cpu", seed: int = 0
) -> Batch:  # fmt: skip
    """A batch for a problem of the paged form: sequences of one length, nothing spoilt."""
    cache = getattr(torch, problem.cache or problem.dtype)
    return make_batch(
        [problem.kv_len] * problem.batch, [problem.q_len] * problem.batch, heads=problem.heads,
        kv_heads=problem.kv_heads, head_dim=problem.head_dim, v_head_dim=problem.v_head_dim,
        block_size=problem.block_size, dtype=getattr(torch, problem.dtype), cache=cache,
        scales="head" if cache.itemsize == 1 else "none", spoilt=False, device=device, seed=seed,
    )  # fmt: skip


@dataclass(frozen=True)
class PagedCall:
    """The arguments of one call of attention_paged(): a batch, and what the variant takes beside it, not packed."""

    batch: Batch
    own: Own

    @property
    def keywords(self) -> dict[str, Any]:
        """Inputs and params for the whole batch, none of it packed."""
        return self.own.keywords


def make_paged(variant: Variant, problem: Problem, device: str | torch.device, seed: int = 0) -> PagedCall:
    """Draw the arguments of a call for a problem of the paged form."""
    batch = batch_of(problem, device, seed)
    return PagedCall(batch, dense_inputs(variant, batch, seed))


def dense_inputs(
    variant: Variant, batch: Batch, seed: int = 0, params: dict[str, bool | int | float] | None = None
) -> Own:  # fmt: skip
    """The variant's inputs and params for the whole batch at the longest lengths, none of it packed.

    `params` replaces values of runtime params.
    """
    generator = torch.Generator(batch.q.device).manual_seed(seed)
    return draw_own(variant, _problem(batch, max(1, *batch.q_lens), batch.longest), generator, seed, params)


def _problem(batch: Batch, q_len: int, kv_len: int) -> Problem:
    (_, heads, head_dim), (_, _, kv_heads, v_head_dim) = batch.q.shape, batch.v_cache.shape
    dtype = str(batch.q.dtype).removeprefix("torch.")
    return Problem(len(batch.kv_lens), heads, kv_heads, q_len, kv_len, head_dim, v_head_dim, dtype)


def packed_keywords(variant: Variant, batch: Batch, own: Own) -> dict[str, Any]:
    """What `dense_inputs` gave as attention_paged() takes it: inputs along queries are packed as q is."""
    packed = {t.name: _packed(t, batch, own.inputs[t.name]) for t in variant.inputs if is_along_queries(t)}
    return keywords_of(variant, "attention_paged", {**own.keywords, **packed})


def _packed(tensor: Input, batch: Batch, whole: torch.Tensor) -> torch.Tensor:
    sizes = [dim.size for dim in tensor.dims]
    across, along = sizes.index(BATCH), sizes.index(Q_LEN)
    along -= along > across
    rows = zip(whole.unbind(across), batch.q_lens, strict=True)
    return torch.cat([row.narrow(along, 0, length) for row, length in rows], along)


def inputs_of(variant: Variant, batch: Batch, own: Own, b: int) -> dict[str, torch.Tensor]:
    """The inputs that `dense_inputs` gave, of the whole batch, cut down to the lengths of one sequence."""
    sizes = input_sizes(variant, _problem(batch, batch.q_lens[b], batch.kv_lens[b]), params=own.params)
    for tensor in variant.inputs:
        shape = own.inputs[tensor.name].shape
        sizes |= {dim.binds: size for dim, size in zip(tensor.dims, shape, strict=True) if dim.binds}
    return {tensor.name: cut_down(tensor, own.inputs[tensor.name], sizes) for tensor in variant.inputs}
