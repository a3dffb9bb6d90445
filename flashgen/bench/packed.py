"""`flashgen bench --mode varlen`: a variant over packed sequences beside its peers, and beside itself over dense ones.

All but FlexAttention compute plain softmax attention, causal or not: they take part where that is the variant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flashgen.analysis.packed import is_packed
from flashgen.bench import flash_attention
from flashgen.bench.agreement import disagreements
from flashgen.bench.candidates import DETERMINISTIC, FLASHGEN, FLEX, sdpa_causal, undropped
from flashgen.bench.flash_attention import FLASH_ATTENTION_4
from flashgen.bench.flex import OPTIONS, Options, described, flex_function
from flashgen.bench.installed import Unavailable, imported
from flashgen.bench.passes import FORWARD, Forward, leaves, trainable
from flashgen.bench.rows import Case, Row
from flashgen.bench.run import Bench, Prepared, measure, prepare_case, ran
from flashgen.bench.serving_peers import FLASH_ATTENTION
from flashgen.bench.timing import cuda_timer
from flashgen.codegen.pairwise import SIZES, Pairwise, make
from flashgen.problems.calls import Call, Own
from flashgen.problems.packed import ends_of, make_packed
from flashgen.problems.problem import Problem
from flashgen.problems.work import visible_share
from flashgen.spec.keywords import keywords_of
from flashgen.spec.variant import Variant

if TYPE_CHECKING:
    from torch import Tensor

# The length of the dense sequences that packed ones are held against, of about as many tokens.
DENSE_LENGTH = 2048
TORCH, DENSE = "torch varlen", f"flashgen, dense S{DENSE_LENGTH}"
PACKED_CANDIDATES = (FLASHGEN, DETERMINISTIC, FLEX, TORCH, FLASH_ATTENTION, FLASH_ATTENTION_4, DENSE)


@dataclass(frozen=True)
class Batch:
    """Packed sequences: q, k and v of `call` are [total, heads, dim]. `own` is not packed; `ends` are cu_seqlens."""

    problem: Problem
    call: Call
    own: Own
    ends: Tensor

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments that calls over packed sequences have in common, in the order of attention_varlen()."""
        call, p = self.call, self.problem
        return call.q, call.k, call.v, self.ends, self.ends, p.q_len, p.kv_len


def make_batch(variant: Variant, problem: Problem, device: str, training: bool) -> Batch:
    """A batch for a problem, which asks for gradients in `training`."""
    drawn = make_packed(variant, problem, device)
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (drawn.call.q, drawn.call.k, drawn.call.v))
    call = replace(drawn.call, q=q, k=k, v=v)
    ends = ends_of([queries for queries, _ in problem.lengths], device)
    return Batch(problem, trainable(variant, call) if training else call, drawn.own, ends)


def measure_packed(variant: Variant, module: ModuleType, case: Case, bench: Bench) -> list[Row]:
    """Every candidate on one case, dense sequences in the same rounds, on the current GPU."""
    import torch

    torch.cuda.empty_cache()
    names = bench.candidates_of(case.step)
    prepared = [prepare_packed(variant, module, case, [name for name in names if name != DENSE])]
    if DENSE in names:
        prepared.append(prepare_case(variant, module, replace(case, problem=as_dense(case.problem)), [FLASHGEN]))
    return [_of(case, row) for row in measure(prepared, bench.rounds, cuda_timer())]


def _of(case: Case, row: Row) -> Row:
    """The row of the dense sequences as one of the case, with their sizes."""
    return row if row.case == case else replace(row, case=case, candidate=DENSE, note=str(row.case.problem))


def as_dense(problem: Problem) -> Problem:
    """Dense sequences of one length that have about as many tokens."""
    batch = max(1, round(problem.tokens[0] / DENSE_LENGTH))
    return replace(problem, mode="dense", batch=batch, q_len=DENSE_LENGTH, kv_len=DENSE_LENGTH, min_len=0)


def prepare_packed(
    variant: Variant, module: ModuleType, case: Case, candidates: Sequence[str], device: str = "cuda"
) -> Prepared:  # fmt: skip
    """Run each of these candidates of a case once."""
    import torch

    training = case.step != FORWARD
    batch = make_batch(variant, case.problem, device, training)
    with torch.no_grad():
        share = visible_share(variant, case.problem, batch.own.keywords, device)
    makers = {name: partial(_CANDIDATES[name], variant, module, batch) for name in candidates}
    with torch.set_grad_enabled(training):
        ready, notes = ran(makers, variant, batch.call, case.step)
        notes |= disagreements(ready, FLASHGEN, case.step, batch.call.v, leaves(variant, batch.call))
    return Prepared(case, tuple(candidates), ready, notes, share)


def _generated(
    variant: Variant, module: Any, batch: Batch, deterministic: bool | None = None
) -> Iterator[tuple[str, Forward]]:  # fmt: skip
    arguments, options = batch.arguments, keywords_of(variant, "attention_varlen", batch.call.keywords)
    if hasattr(module, "plan_varlen"):
        options["plan"] = module.plan_varlen(*arguments, **options)
    options |= undropped(module)
    yield "", lambda: module.attention_varlen(*arguments, **options, deterministic=deterministic)


def _torch(variant: Variant, module: ModuleType, batch: Batch) -> Iterator[tuple[str, Forward]]:
    """Torch's own, which has changed how it is told of a causal mask and of shared KV heads."""
    causal = sdpa_causal(variant, batch.problem)
    attend, arguments = imported("torch.nn.attention.varlen", "varlen_attn"), batch.arguments
    known = signature(attend).parameters
    options: dict[str, Any] = {"window_size": (-1, 0 if causal else -1)}
    if "window_size" not in known:
        options = {"is_causal": causal}
    if batch.problem.heads != batch.problem.kv_heads:
        if "enable_gqa" not in known:
            raise Unavailable("takes as many KV heads as query heads")
        options["enable_gqa"] = True
    yield "", lambda: attend(*arguments, **options)


def _flash_attention(variant: Variant, module: ModuleType, batch: Batch) -> Iterator[tuple[str, Forward]]:
    causal, arguments = sdpa_causal(variant, batch.problem), batch.arguments
    attend = imported("flash_attn", "flash_attn_varlen_func")
    yield "", lambda: attend(*arguments, causal=causal)


def _flash_attention_4(variant: Variant, module: ModuleType, batch: Batch) -> Iterator[tuple[str, Forward]]:
    attend, arguments = flash_attention.packed(variant, batch.problem), batch.arguments
    yield "", lambda: attend(*arguments)


def _flex(variant: Variant, module: ModuleType, batch: Batch) -> Iterator[tuple[str, Forward]]:
    """Its own kernels, then smaller ones, each where those before do not fit."""
    for options in OPTIONS:
        yield described(options), flex_packed(variant, batch, options=options)


def flex_packed(variant: Variant, batch: Batch, compiled: bool = True, options: Options | None = None) -> Forward:
    """FlexAttention with a document mask: tokens of one sequence, and of these those that the variant's mask leaves."""
    call, total = batch.call, batch.problem.tokens[0]
    one = replace(batch.problem, mode="dense", batch=1, q_len=total, kv_len=total)
    sinks = call.inputs["sinks"] if variant.sink else None
    attend = flex_function(
        variant, one, documents(variant, batch), sinks, str(call.q.device), compiled, options, masked=True
    )

    def forward() -> Tensor:
        q, k, v = (tensor.transpose(0, 1)[None] for tensor in (call.q, call.k, call.v))
        return attend(q, k, v)[0].transpose(0, 1)

    return forward


def documents(variant: Variant, batch: Batch) -> Pairwise:
    """The variant's score and mask of two tokens by their numbers among all; those of two sequences are masked."""
    import torch

    given = batch.own.keywords | {t.name: batch.call.inputs[t.name] for t in variant.inputs if not is_packed(t)}
    own = make(variant, {name: getattr(batch.problem, name) for name in SIZES}, given)
    lengths = batch.ends.diff()
    sequence = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    place = torch.arange(len(sequence), device=lengths.device) - batch.ends[sequence]

    def score(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return own.score(score, sequence[q], h, place[q], place[k])

    def mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (sequence[q] == sequence[k]) & own.mask(sequence[q], h, place[q], place[k])

    return Pairwise(score, mask)


_CANDIDATES: Mapping[str, Callable[[Variant, ModuleType, Batch], Iterator[tuple[str, Forward]]]] = {
    FLASHGEN: _generated,
    DETERMINISTIC: partial(_generated, deterministic=True),
    FLEX: _flex,
    TORCH: _torch,
    FLASH_ATTENTION: _flash_attention,
    FLASH_ATTENTION_4: _flash_attention_4,
}
