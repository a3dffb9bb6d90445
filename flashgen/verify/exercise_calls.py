"""Calls of every form, on small tensors, for kernels to run under a sanitizer.

What a call is told on the device, where packed sequences end, pages and lengths, nobody has looked at: it is given
right and wrong, and kernels must touch no memory but the tensors' for either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch

from flashgen.problems.calls import Call, make_inputs
from flashgen.problems.packed import ends_of, make_packed
from flashgen.problems.paged import Batch, dense_inputs, make_batch, packed_keywords
from flashgen.problems.problem import Problem
from flashgen.runtime import Config
from flashgen.runtime.serving import merge_states, store_kv
from flashgen.spec.keywords import keywords_of
from flashgen.spec.variant import Variant

FARTHEST, LOWEST = 2**31 - 1, -(2**31)


def dense(
    variant: Variant, module: ModuleType, problem: Problem, configs: Mapping[str, Config], deterministic: bool,
    device: str,
) -> None:  # fmt: skip
    """Forward and backward of dense tensors."""
    _train(variant, module.attention, make_inputs(variant, problem, device), (), configs, deterministic)


def packed(
    variant: Variant, module: ModuleType, problem: Problem, configs: Mapping[str, Config], deterministic: bool,
    device: str,
) -> None:  # fmt: skip
    """Forward and backward of packed sequences, with ends that are right and that are not."""
    problem = replace(problem, batch=4, mode="varlen", min_len=1)
    call = make_packed(variant, problem, device).call
    q, k, v = (each[0].transpose(0, 1).contiguous() for each in (call.q, call.k, call.v))
    call = replace(call, q=q, k=k, v=v)
    right_q, right_k = (ends_of([own[side] for own in problem.lengths], device) for side in (0, 1))
    for ends in ((right_q, right_k), *((wrong, right_k) for wrong in wrong_ends(right_q)),
                 *((right_q, wrong) for wrong in wrong_ends(right_k))):  # fmt: skip
        told = (*ends, problem.q_len, problem.kv_len)
        _train(variant, module.attention_varlen, call, told, configs, deterministic)


def serving(
    variant: Variant, module: ModuleType, problem: Problem, configs: Mapping[str, Config], deterministic: bool,
    device: str,
) -> None:  # fmt: skip
    """Decoding of dense tensors; paged batches, planned and not; what writes their caches and merges results."""
    few = make_inputs(variant, replace(problem, q_len=2, kv_len=5 * problem.kv_len), device)
    results = module.attention(few.q, few.k, few.v, **few.keywords, return_lse=True)
    merge_states(*([each, each] for each in results))
    # Some sequences decode, one is speculated on, two have prompts of several tiles, one has nothing.
    queries = (1, 1, 5, problem.q_len // 2, problem.q_len, 0)
    keys = (1, 40, 17, problem.q_len // 2, problem.kv_len, 0)
    for cache, scales in ((None, "none"), (torch.float8_e4m3fn, "token")):
        batch = make_batch(
            keys, queries, heads=problem.heads, kv_heads=problem.kv_heads, head_dim=problem.head_dim,
            v_head_dim=problem.v_head_dim, dtype=getattr(torch, problem.dtype), cache=cache, scales=scales,
            device=device,
        )  # fmt: skip
        keywords = packed_keywords(variant, batch, dense_inputs(variant, batch))
        _store(batch)
        given, planning = batch.planning
        of_others = module.plan_paged(*given, **planning)
        for each, ends in ((batch, batch.cu_seqlens_q), *_wrong_batches(batch)):
            told = {**each.options, "cu_seqlens_q": ends}
            module.attention_paged(*each.arguments, **told, **keywords)
            module.attention_paged(*each.arguments, **told, **keywords, plan=of_others)
            given, planning = each.planning
            plan = module.plan_paged(*given, **{**planning, "cu_seqlens_q": ends})
            module.attention_paged(*each.arguments, **told, **keywords, plan=plan, return_lse=True)


def wrong_ends(ends: torch.Tensor) -> Iterator[torch.Tensor]:
    """Ends of sequences that fall, that lie beyond the tensor, in front of it, and as far off as numbers go."""
    yield ends.flip(0)
    yield ends * 3 + 7
    yield -ends - 1
    every_other = torch.arange(len(ends), device=ends.device) % 2 == 0
    for number in (FARTHEST, LOWEST):
        yield torch.full_like(ends, number)
        yield ends.masked_fill(every_other, number)
        yield ends.masked_fill(~every_other, number)


def _wrong_batches(batch: Batch) -> Iterator[tuple[Batch, torch.Tensor | None]]:
    """Batches with pages that are not in the cache, with lengths beyond the table, and with such ends of queries."""
    ends = batch.cu_seqlens_q
    assert ends is not None
    for page in (batch.k_cache.shape[0], -1, FARTHEST, LOWEST):
        yield replace(batch, block_table=torch.full_like(batch.block_table, page)), ends
    for length in (batch.longest + 1, -1, FARTHEST, LOWEST):
        yield replace(batch, kv_lens=(length,) * len(batch.kv_lens)), ends
    for wrong in wrong_ends(ends):
        yield batch, wrong


def _store(batch: Batch) -> None:
    """Write tokens into the cache, at slots that it has and at others."""
    slots = batch.k_cache.shape[0] * batch.k_cache.shape[1]
    mapping = torch.tensor([0, slots - 1, -1, slots, -slots, FARTHEST, LOWEST], device=batch.q.device)
    k, v = (
        torch.ones((len(mapping), *cache.shape[2:]), dtype=batch.q.dtype, device=batch.q.device)
        for cache in (batch.k_cache, batch.v_cache)
    )
    store_kv(k, v, batch.k_cache, batch.v_cache, mapping, **batch.scales)
    store_kv(k, v, batch.k_cache, batch.v_cache, mapping.int(), **batch.scales)


def _train(
    variant: Variant, attend: Callable[..., Any], call: Call, told: Sequence[Any], configs: Mapping[str, Config],
    deterministic: bool,
) -> None:  # fmt: skip
    """A call, told so after q, k and v, and the gradients of these and of all that is learned."""
    learned = [call.inputs[tensor.name] for tensor in variant.inputs if tensor.grad]
    leaves = [tensor.requires_grad_() for tensor in (call.q, call.k, call.v, *learned)]
    backward = {family: config for family, config in configs.items() if family != "forward"}
    outputs = attend(
        call.q, call.k, call.v, *told, **keywords_of(variant, attend.__name__, call.keywords), return_lse=True,
        config=configs["forward"], backward_config=backward, deterministic=deterministic,
    )  # fmt: skip
    torch.autograd.grad(outputs, leaves, [torch.ones_like(each) for each in outputs])
