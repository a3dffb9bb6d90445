"""The plan of a paged call: how the keys of its sequences are split, and which kernel has a sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from flashgen.runtime.arguments import MAX_HEAD_DIM, check_paged_types, check_scalar
from flashgen.runtime.autocast import autocast_beside_cache
from flashgen.runtime.choosing import choose_paged, config_text
from flashgen.runtime.config import Config
from flashgen.runtime.decoding import programs_at_once, row_tile
from flashgen.runtime.device.plan import plan_splits
from flashgen.runtime.extending_paged import MOST_DECODED, Extension, extension_of, of_few_queries
from flashgen.runtime.launching import launch
from flashgen.runtime.paged import PagedArguments, PagedCall, PagedLayout, PagedTensors, layout_of, prepare_paged
from flashgen.runtime.torch_operator import Operator, operator
from flashgen.runtime.variant import Variant
from flashgen.runtime.widths import tile_widths

# Keys of a split where a sequence's bits are not to depend on the batch.
FIXED_SPLIT = 2048
# How many rounds of programs at most the splits of a batch are shared out in, beside one for each tile.
_ROUNDS = 3
# Sequences that a program of the plan looks at at a time.
_BLOCK = 256
_NO_WINDOW = 2**30


@dataclass(frozen=True)
class PagedPlan:
    """How the keys of a batch are split, for attention_paged(..., plan=plan): one plan serves all layers of a step.

    `items` int32 [room, 4]: a sequence, a tile of its rows, a split of its keys and how many of these there are;
    `count` int32 [1]: how many items are in use. Where sequences of many queries are the forward kernel's its items lie
    behind these, and count is [2]. `sizes` are what `planned_sizes` says of the call, and the rows of a tile. `config`
    and `batch_invariant` are what it was made with, `variant` the full name of the variant that made it.
    """

    items: torch.Tensor
    count: torch.Tensor
    sizes: tuple[int, ...]
    config: str | None
    batch_invariant: bool
    variant: str


# A plan as the operator takes it: its items, their number and its sizes.
PlanParts = tuple[torch.Tensor | None, torch.Tensor | None, Sequence[int] | None]


class Shape(NamedTuple):
    """What follows from a call's sizes: its config, the rows of a tile, the room for items, a split's tiles of keys.

    `at_once` is how many items the GPU works at at a time. `chunk` is 0 where the plan is to choose it. `rows` are
    those of a KV head in the longest sequence.
    """

    config: Config
    BM: int
    rows: int
    room: int
    at_once: int
    chunk: int


class Work(NamedTuple):
    """What the kernels have of a call: it is as the decode kernel has it, a query sees `span` keys at most."""

    call: PagedCall
    shape: Shape
    extension: Extension | None
    span: int | None

    @property
    def room(self) -> int:
        """For how many items a plan has room."""
        return self.shape.room + (0 if self.extension is None else self.extension.room)

    @property
    def counts(self) -> int:
        """For how many kernels it has items."""
        return 1 if self.extension is None else 2


# That of each variant, by its full name: torch.compile looks none up by an object.
_operators: dict[str, Operator] = {}


def register_paged_plan(variant: Variant, name: str, *, shared: bool) -> None:
    """Register the operator `name` that makes the plans of a variant."""

    def launch(*given: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        call, work = _asked(variant, prepare_paged, given)
        return *planned(call, work), _tile(call.tensors.q, work)

    def fake(*given: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        call, work = _asked(variant, _traced, given)
        return *_empty_plan(call.tensors.q, work), _tile(call.tensors.q, work)

    _operators[variant.full_name] = operator(
        name,
        "(Tensor q, Tensor k_cache, Tensor block_table, Tensor seq_lens, Tensor? cu_seqlens_q, SymInt max_seqlen_q, "
        "SymInt? max_seqlen_k, int? v_head_dim, bool batch_invariant, str? config) -> (Tensor, Tensor, Tensor)",
        launch,
        fake,
        shared=shared,
    )


def paged_plan(
    variant: Variant, q: torch.Tensor, k_cache: torch.Tensor, block_table: torch.Tensor, seq_lens: torch.Tensor, *,
    cu_seqlens_q: torch.Tensor | None, max_seqlen_q: int, max_seqlen_k: int | None, v_head_dim: int | None,
    batch_invariant: bool, config: Any,
) -> PagedPlan:  # fmt: skip
    """plan_paged() of a variant: the plan of a call with these tensors, made on the device."""
    check_paged_types(
        max_seqlen_q, max_seqlen_k, batch_invariant, q=q, k_cache=k_cache, block_table=block_table, seq_lens=seq_lens,
        cu_seqlens_q=cu_seqlens_q,
    )  # fmt: skip
    if v_head_dim is not None and not 1 <= check_scalar("v_head_dim", v_head_dim, int) <= MAX_HEAD_DIM:
        raise ValueError(f"v_head_dim is {v_head_dim}; expected 1 to {MAX_HEAD_DIM}")
    q, text = autocast_beside_cache(q, k_cache), config_text(config, "decode_paged")
    items, count, tile = _operators[variant.full_name](
        q, k_cache, block_table, seq_lens, cu_seqlens_q, max_seqlen_q, max_seqlen_k, v_head_dim, batch_invariant, text
    )
    sizes = (*planned_sizes(q, k_cache, block_table, cu_seqlens_q, max_seqlen_q), tile.shape[1])
    return PagedPlan(items, count, sizes, text, batch_invariant, variant.full_name)


def planned_sizes(
    q: torch.Tensor, k_cache: torch.Tensor, block_table: torch.Tensor, cu_seqlens_q: torch.Tensor | None,
    max_seqlen_q: int,
) -> tuple[int, ...]:  # fmt: skip
    """By what the items of a plan count sequences and tiles: batch, the most queries of one, heads and kv_heads."""
    return block_table.shape[0], 1 if cu_seqlens_q is None else max_seqlen_q, q.shape[1], k_cache.shape[2]


def _tile(q: torch.Tensor, work: Work) -> torch.Tensor:
    """The rows of a tile as the shape of a tensor without elements, since an operator returns no number."""
    return torch.empty((0, work.shape.BM), dtype=torch.int32, device=q.device)


def _traced(given: PagedArguments) -> PagedCall:
    """The call that torch traces: nothing of it is remembered, since its sizes may be symbols."""
    return PagedCall(given.tensors, layout_of(given))


def _asked(
    variant: Variant, prepare: Callable[[PagedArguments], PagedCall], given: Sequence[Any]
) -> tuple[PagedCall, Work]:
    """The call that a plan is for, and what follows from its sizes; `given` are the operator's arguments."""
    *tensors, max_seqlen_q, max_seqlen_k, v_head_dim, batch_invariant, config = given
    q, k_cache, block_table, seq_lens, cu_seqlens_q = tensors
    values = k_cache
    if v_head_dim not in (None, k_cache.shape[-1]):
        # Of v_cache the width alone is looked at.
        values = k_cache.new_empty(v_head_dim).expand(*k_cache.shape[:-1], v_head_dim)
    read = PagedTensors(q, k_cache, values, block_table, seq_lens, cu_seqlens_q, None, None)
    call = prepare(PagedArguments(read, max_seqlen_q, max_seqlen_k, None))
    extension = extension_of(variant, call, config)
    return call, work_of(variant, call, extension, batch_invariant, config)


def _empty_plan(q: torch.Tensor, work: Work) -> tuple[torch.Tensor, torch.Tensor]:
    items = torch.empty((work.room, 4), dtype=torch.int32, device=q.device)
    return items, torch.empty(work.counts, dtype=torch.int32, device=q.device)


def planned(call: PagedCall, work: Work) -> tuple[torch.Tensor, torch.Tensor]:
    """The items of a call and their numbers, made on the device."""
    s, shape, extension = call.layout.sizes, work.shape, work.extension
    items, count = _empty_plan(call.tensors.q, work)
    apart = (None, None) if extension is None else (MOST_DECODED, extension.config.BM)
    launch(
        plan_splits, s.batch,
        items, count, call.tensors.seq_lens, call.tensors.cu_seqlens_q,
        (s.batch, s.total_q, s.q_len, s.heads // s.kv_heads, call.layout.max_keys),
        _NO_WINDOW if work.span is None else work.span, shape.room, shape.at_once, shape.chunk, work.room - shape.room,
        BM=shape.BM, BN=shape.config.BN, BLOCK=min(_BLOCK, max(16, 1 << (s.batch - 1).bit_length())),
        MOST_Q=apart[0], Q_BM=apart[1], num_warps=8,
    )  # fmt: skip
    return items, count


def work_of(
    variant: Variant, call: PagedCall, extension: Extension | None, batch_invariant: bool, config: str | None
) -> Work:  # fmt: skip
    """What each kernel has of a call; with an extension the decode kernel has sequences of few queries alone."""
    if extension is not None:
        call = call._replace(layout=of_few_queries(call.layout))
    chosen = choose_paged(config, variant.configs["decode_paged"], call, batch_invariant)
    gpu, single = call.tensors.q.get_device(), call.tensors.cu_seqlens_q is None
    shape = _shape(call.layout, gpu, single, variant.span, batch_invariant, chosen)
    return Work(call, shape, extension, variant.span)


@lru_cache(maxsize=1024)
def _shape(
    layout: PagedLayout, gpu: int, single: bool, span: int | None, batch_invariant: bool, chosen: Config,
) -> Shape:  # fmt: skip
    s = layout.sizes
    group = s.heads // s.kv_heads
    rows = group if single else group * s.q_len
    if batch_invariant:
        # The rows of a tile follow from the model alone, not from the longest sequence.
        BM = row_tile(chosen, group)
        keys = layout.max_keys if span is None else min(layout.max_keys, span + BM)
        chunk = FIXED_SPLIT // chosen.BN
        splits = -(-keys // FIXED_SPLIT)
    else:
        BM, chunk, splits = row_tile(chosen, rows), 0, 1
    most = s.batch * -(-rows // BM)
    tiles = most if single else min(most, s.total_q * group // BM + s.batch)
    widths = tile_widths(s.head_dim, s.v_head_dim)
    at_once = max(1, programs_at_once(gpu, chosen.but(BM=BM), widths, *layout.itemsizes) // s.kv_heads)
    room = tiles * splits if batch_invariant else tiles + _ROUNDS * at_once
    return Shape(chosen, BM, rows, max(room, 1), at_once, chunk)
