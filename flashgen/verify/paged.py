"""Proof of attention over a paged cache: each sequence as its reference has it, whatever lies around it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from flashgen.problems.calls import Call, Own
from flashgen.problems.dropped import Dropout, formula_of
from flashgen.problems.paged import Batch, dense_inputs, inputs_of, make_batch, packed_keywords
from flashgen.problems.sequence import of_sequence, reads_batch
from flashgen.spec.variant import Variant
from flashgen.verify.budget import Reference, Verdict, judge
from flashgen.verify.paged_cases import PagedCase
from flashgen.verify.poison import poisoned
from flashgen.verify.row_terms import counted_apart


def prove_paged(
    module: ModuleType, variant: Variant, case: PagedCase, device: str, own: Own | None = None
) -> Verdict:  # fmt: skip
    """Run a case and judge each sequence; the verdict is that on the worst one. `own` is drawn where it is None."""
    batch = batch_of_case(case, device)
    own = own or dense_inputs(variant, batch, case.seed, dict(case.params))
    return judge_batch(module, variant, batch, own, *_answer(module, variant, batch, own, case))


def launch_paged(module: ModuleType, variant: Variant, case: PagedCase, device: str) -> None:
    """What a case launches, for a rehearsal."""
    batch = batch_of_case(case, device)
    _answer(module, variant, batch, dense_inputs(variant, batch, case.seed, dict(case.params)), case)


def batch_of_case(case: PagedCase, device: str) -> Batch:
    return make_batch(
        case.kv_lens, case.q_lens, heads=case.heads, kv_heads=case.kv_heads, head_dim=case.head_dim,
        v_head_dim=case.v_head_dim, block_size=case.block_size, dtype=getattr(torch, case.dtype),
        cache=getattr(torch, case.cache or case.dtype), scales=case.scales, by_head=case.by_head, device=device,
        seed=case.seed,
    )  # fmt: skip


def _answer(
    module: ModuleType, variant: Variant, batch: Batch, own: Own, case: PagedCase
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of the batch, on memory full of NaN."""
    how: dict[str, Any] = {"batch_invariant": case.batch_invariant, "config": case.config}
    with poisoned():
        if case.planned:
            given, told = batch.planning
            how = {"plan": module.plan_paged(*given, **told, **how)}
        keywords = packed_keywords(variant, batch, own)
        out, lse = module.attention_paged(*batch.arguments, **batch.options, **keywords, **how, return_lse=True)
    return out, lse


def judge_batch(
    module: ModuleType, variant: Variant, batch: Batch, own: Own, out: torch.Tensor, lse: torch.Tensor
) -> Verdict:
    """The verdict on the worst sequence of a batch, named; `own` is what `dense_inputs` gave."""
    total_q, heads, _ = batch.q.shape
    if tuple(out.shape) != (total_q, heads, batch.v_cache.shape[3]) or tuple(lse.shape) != (heads, total_q):
        return Verdict(math.inf, 0.0, False, f"out has shape {tuple(out.shape)} and lse {tuple(lse.shape)}")
    return max(
        judge_sequences(module, variant, batch, own, out, lse),
        key=lambda verdict: (not verdict.ok, verdict.error / (verdict.budget or math.inf)),
    )


def judge_sequences(
    module: ModuleType, variant: Variant, batch: Batch, own: Own, out: torch.Tensor, lse: torch.Tensor
) -> Iterator[Verdict]:
    """One for each sequence."""
    for b, (start, end) in enumerate(zip(batch.query_ends, batch.query_ends[1:], strict=False)):
        found = _judged(module, variant, batch, own, b, out[start:end], lse[:, start:end])
        yield Verdict(found.error, found.budget, found.ok, f"sequence {b}: {found.detail}")


def _judged(
    module: ModuleType, variant: Variant, batch: Batch, own: Own, b: int, out: torch.Tensor, lse: torch.Tensor
) -> Verdict:
    """Of one sequence, by its own out [q_len, heads, v_head_dim] and lse [heads, q_len]."""
    if not batch.kv_lens[b] or not batch.q_lens[b]:
        empty = bool((out == 0).all()) and bool((lse == -math.inf).all())
        return Verdict(0.0, 0.0, empty, "nothing to see" if empty else "a row without a key is not 0 with lse -inf")
    call = Call(*batch.sequence(b), inputs_of(variant, batch, own, b), own.params)
    reference: Reference = module.reference
    if variant.dropout is not None:
        reference = formula_of(module, Dropout(0.0)).undropped
    sequences = len(batch.kv_lens)
    if reads_batch(variant):
        reference = of_sequence(reference, b, sequences)
    apart = counted_apart(variant, call, b, sequences)
    return judge(out.transpose(0, 1)[None], lse[None], call, reference, counted_apart=apart)
