"""Sequences of a paged call that have many new queries: a forward kernel takes them, by TMA, from the very pages.

Which kernel has a sequence follows from its number of new queries alone, on the device: the plan has items for both
kernels, and no row is written by the other one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from typing import Any, NamedTuple

import torch

from flashgen.runtime.call import Call, Layout, OwnLayout
from flashgen.runtime.config import Config
from flashgen.runtime.declared import Input
from flashgen.runtime.device.sm90.tiles import far
from flashgen.runtime.kernels.forward_sm90 import FORWARD_SM90_KERNEL, launch_over_pages
from flashgen.runtime.lookup import current_device
from flashgen.runtime.own_arguments import given_own
from flashgen.runtime.packed_sizes import VarlenSizes
from flashgen.runtime.paged import PagedCall, PagedLayout
from flashgen.runtime.variant import Variant
from flashgen.runtime.varlen import by_tokens

# The most new queries of a sequence that is the decode kernel's. Of more, tiles of the forward kernel are half full at
# least.
MOST_DECODED = 64
# What TMA reads begins at multiples of so many bytes, or of so many numbers of 16 bits.
_ALIGNED, _NUMBERS = 16, 8


class Extension(NamedTuple):
    """How the forward kernel has the sequences of many queries: its config, and room for so many tiles of a head."""

    config: Config
    room: int


@dataclass(frozen=True)
class PagedKeySizes(VarlenSizes):
    """Queries are packed, keys lie in pages: `total_k` is 0, and no kernel's."""

    @property
    def numbers(self) -> Mapping[str, int | None]:
        return {**super().numbers, "total_k": None}


class Steps(NamedTuple):
    """Elements of a step along the pages of a cache, and how many of these lead one page on, and one slot."""

    elements: int
    page: int
    slot: int


def extension_of(variant: Variant, call: PagedCall, config: str | None) -> Extension | None:
    """What the forward kernel has of a call; None where the decode kernel has all: so it is where a config is named."""
    s, t = call.layout.sizes, call.tensors
    if config is not None or min(s.q_len, s.total_q) <= MOST_DECODED or t.cu_seqlens_q is None or not t.q.is_cuda:
        return None
    capability = current_device(t.q.get_device()).capability
    return _extension(variant, call.layout, capability, t.q.dtype, t.k_cache.dtype)


@lru_cache(maxsize=1024)
def _extension(
    variant: Variant, layout: PagedLayout, capability: str, dtype: torch.dtype, cache: torch.dtype
) -> Extension | None:
    if stays(variant, layout, capability, dtype, cache):
        return None
    s = layout.sizes
    config = FORWARD_SM90_KERNEL.default("", capability, _name(dtype), s.head_dim, s.v_head_dim)
    # Each sequence may have a tile that is not full.
    return Extension(config, s.total_q // config.BM + min(s.batch, s.total_q // (MOST_DECODED + 1)))


def stays(variant: Variant, layout: PagedLayout, capability: str, dtype: torch.dtype, cache: torch.dtype) -> str:
    """Why no sequence of such calls is the forward kernel's, however many queries it has; "" where one may be.

    What follows from v_cache beyond its width, and from addresses, is `reaches`'s.
    """
    s, why = layout.sizes, ""
    if FORWARD_SM90_KERNEL.name not in variant.kernels or variant.planned:
        why = "the forward kernel needs a schedule, which there is none of over pages"
    elif variant.counts_batch and any(each.varlen is not None for each in variant.inputs):
        # Where sequences are packed the kernel reads inputs along keys for its own sequence alone.
        why = "an input along keys may be read for other sequences"
    elif cache != dtype:
        why = f"the cache is {_name(cache)}, which the forward kernel does not convert"
    elif why := FORWARD_SM90_KERNEL.refuses(capability, _name(dtype), s.head_dim, s.v_head_dim):
        pass
    elif any(stride % _NUMBERS for stride in layout.strides[:2]) or steps_of(layout, "k") is None:
        why = f"rows of q and pages of k_cache must be multiples of {_ALIGNED} bytes apart, and fewer than 2^31 steps"
    return why


def reaches(call: PagedCall, out: torch.Tensor) -> bool:
    """Whether TMA reaches the tensors of a call: both caches by the same steps, an output without gaps."""
    addressed = (call.tensors.q, call.tensors.k_cache, call.tensors.v_cache, out)
    return _alike(call.layout) and out.is_contiguous() and not any(t.data_ptr() % _ALIGNED for t in addressed)


@lru_cache(maxsize=1024)
def _alike(layout: PagedLayout) -> bool:
    k, v = steps_of(layout, "k"), steps_of(layout, "v")
    return k is not None and v is not None and k[1:] == v[1:]


@lru_cache(maxsize=1024)
def steps_of(layout: PagedLayout, cache: str) -> Steps | None:
    """The steps of k_cache, "k", or v_cache, "v"; None where TMA has no such."""
    page, slot, head = layout.strides[2:5] if cache == "k" else layout.strides[5:8]
    page = slot * layout.block_size if layout.num_blocks == 1 else page
    head = _NUMBERS if layout.sizes.kv_heads == 1 else head
    if any(stride < _NUMBERS or stride % _NUMBERS for stride in (page, slot, head)):
        return None
    step = gcd(page, slot)
    found = Steps(step, page // step, slot // step)
    return found if found.page * layout.num_blocks + found.slot * layout.block_size < far() else None


@lru_cache(maxsize=1024)
def of_few_queries(layout: PagedLayout) -> PagedLayout:
    """The layout of a call as the decode kernel has it, where it is left with sequences of few queries."""
    return replace(layout, sizes=replace(layout.sizes, q_len=MOST_DECODED))


def launch_extension(
    variant: Variant, call: PagedCall, extension: Extension, out: torch.Tensor, lse: torch.Tensor, items: torch.Tensor,
    count: torch.Tensor,
) -> None:  # fmt: skip
    """Write out and lse of the sequences of many queries, whose `items` these are, as many as `count` [2] has last."""
    layout = _forward_layout(call.layout)
    given, own = _own(variant, call, layout)
    t = call.tensors
    tensors = {
        "out_ptr": out, "lse_ptr": lse, "max_ptr": None, "cu_seqlens_q_ptr": t.cu_seqlens_q,
        "cu_seqlens_k_ptr": t.seq_lens, "block_table_ptr": t.block_table, "items_ptr": items, "count_ptr": count,
        **({"residue_ptr": torch.empty_like(lse)} if variant.natural else {}), **given,
    }  # fmt: skip
    forward = Call(t.q, t.k_cache, t.v_cache, layout, given, own)
    launch_over_pages(variant, forward, extension.config, tensors, extension.room, lambda: _numbers(call.layout))


def _numbers(layout: PagedLayout) -> dict[str, Any]:
    """What the kernel takes of the pages, and of sizes and strides where they say something else."""
    k, v = steps_of(layout, "k"), steps_of(layout, "v")
    assert k is not None and v is not None
    head = {"stride_kh": _NUMBERS, "stride_vh": _NUMBERS} if layout.sizes.kv_heads == 1 else {}
    return {
        "stride_kb": k.elements, "stride_vb": v.elements, "step_page": k.page, "step_slot": k.slot, **head,
        "stride_table": layout.strides[-1], "num_blocks": layout.num_blocks, "kv_len": layout.max_keys,
        "BLOCK_SIZE": layout.block_size,
    }  # fmt: skip


@lru_cache(maxsize=1024)
def _forward_layout(layout: PagedLayout) -> Layout:
    """The layout of a call as the forward kernel has it. Strides along the batch are none."""
    s = layout.sizes
    q_token, q_head, _, k_slot, k_head, _, v_slot, v_head = layout.strides[:8]
    return Layout(
        layout.scale,
        PagedKeySizes(**vars(s), total_k=0),
        (0, q_head, q_token, 0, k_head, k_slot, 0, v_head, v_slot),
        (s.heads, s.kv_heads, s.q_len, s.kv_len, s.head_dim, s.v_head_dim),
        copies=False,
    )


def _own(variant: Variant, call: PagedCall, layout: Layout) -> tuple[Mapping[str, Any], OwnLayout]:
    """The variant's own inputs, those along queries packed, by the strides that the forward kernel has for them."""
    if not call.given:
        return {}, call.own
    params = {name: value for name, value in call.given.items() if not name.endswith("_ptr")}
    inputs = [call.given[each.pointer] for each in variant.inputs]
    return given_own(variant, _declared(variant), call.tensors.q, layout, inputs, params)


@lru_cache(maxsize=256)
def _declared(variant: Variant) -> tuple[Input, ...]:
    return tuple(by_tokens(each, each.packed) for each in variant.inputs)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
