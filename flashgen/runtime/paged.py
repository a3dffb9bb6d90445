"""A call of attention over a paged cache: its tensors checked against each other, as kernels read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from flashgen.runtime.arguments import DTYPES, MAX_HEAD_DIM, check_longest, is_known, refuse_unstrided, scale_of
from flashgen.runtime.bounded_cache import remember
from flashgen.runtime.cache_dtypes import CACHE_DTYPES, quantised_names
from flashgen.runtime.call import FLOAT32, NOTHING_OWN, OwnLayout
from flashgen.runtime.interpreter import interpreted
from flashgen.runtime.sizes import Sizes
from flashgen.runtime.strides import is_contiguous_last

INT32 = 2**31 - 1


@dataclass(frozen=True)
class Pages:
    """The sizes of a cache [num_blocks, block_size, kv_heads, head_dim]."""

    num_blocks: int
    block_size: int
    kv_heads: int
    head_dim: int
    device: torch.device

    @classmethod
    def of(cls, name: str, cache: torch.Tensor, device: torch.device) -> Pages:
        """The pages of a tensor; ValueError or TypeError for one that is no cache on this device."""
        if cache.ndim != 4 or cache.shape[1] % 16 or 0 in cache.shape or not is_contiguous_last(cache):
            raise ValueError(
                f"{name} has shape {tuple(cache.shape)} and strides {cache.stride()}; expected [num_blocks, "
                "block_size, kv_heads, head_dim], block_size a multiple of 16, with a contiguous last dimension"
            )
        if cache.dtype not in CACHE_DTYPES:
            raise TypeError(f"{name} has dtype {cache.dtype}; expected q's, {quantised_names()}")
        if cache.device != device:
            raise ValueError(f"{name} is on {cache.device}; expected {device}")
        num_blocks, block_size, kv_heads, head_dim = cache.shape
        return cls(num_blocks, int(block_size), int(kv_heads), int(head_dim), cache.device)


def scale_strides(name: str, scale: torch.Tensor | None, pages: Pages) -> tuple[int, int, int]:
    """Strides of a cache's scales along pages, their slots and heads: 0 where one scale serves all."""
    if scale is None:
        return (0, 0, 0)
    if not isinstance(scale, torch.Tensor) or scale.dtype != torch.float32 or scale.device != pages.device:
        what = f"{scale.dtype} on {scale.device}" if isinstance(scale, torch.Tensor) else type(scale).__name__
        raise TypeError(f"{name} is {what}; expected a float32 tensor on {pages.device}")
    shape = tuple(scale.shape)
    if shape == ():
        return (0, 0, 0)
    if shape == (pages.kv_heads,):
        return (0, 0, scale.stride(0))
    if shape == (pages.num_blocks, pages.block_size, pages.kv_heads):
        page, slot, head = scale.stride()
        return page, slot, head
    raise ValueError(
        f"{name} has shape {shape}; expected [], [{pages.kv_heads}] for kv_heads, or [{pages.num_blocks}, "
        f"{pages.block_size}, {pages.kv_heads}] for num_blocks, block_size and kv_heads"
    )


@dataclass(frozen=True)
class PackedSizes(Sizes):
    """The sizes of a call whose queries are packed: total_q of them, and the longest lengths."""

    total_q: int


@dataclass(frozen=True, eq=False)
class PagedLayout:
    """What a paged call is but for the values of its tensors; calls that are alike share one.

    `sizes` are those that inputs are held against. `strides` are those of q along tokens and
    heads, of k_cache and v_cache along pages, slots and heads, of both scales likewise, and of block_table, in
    elements. `max_keys` is how many keys a row of the table has room for. `itemsizes` are the bytes of a number of q
    and of a cache's.
    """

    scale: float
    negated: bool
    sizes: PackedSizes
    max_keys: int
    num_blocks: int
    block_size: int
    strides: tuple[int, ...]
    TOKEN_SCALES: bool
    itemsizes: tuple[int, int]


class PagedTensors(NamedTuple):
    """The tensors that the caller of attention_paged() gives, but for its outputs, its plan and the variant's own."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    cu_seqlens_q: torch.Tensor | None
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None

    @property
    def named(self) -> dict[str, torch.Tensor | None]:
        return dict(zip(self._fields, self, strict=True))


class PagedArguments(NamedTuple):
    """These and the numbers beside them."""

    tensors: PagedTensors
    max_seqlen_q: int
    max_seqlen_k: int | None
    scale: float | None


class PagedCall(NamedTuple):
    """One call of attention_paged(), checked. `given` and `own` are as a `Call` has them."""

    tensors: PagedTensors
    layout: PagedLayout
    given: Mapping[str, Any] = {}
    own: OwnLayout = NOTHING_OWN

    @property
    def sizes(self) -> PackedSizes:
        return self.layout.sizes


_layouts: dict[object, PagedLayout] = {}


def prepare_paged(given: PagedArguments) -> PagedCall:
    """Check the tensors of a call; ValueError or TypeError where one does not fit the others."""
    tensors = given.tensors
    try:
        about = tuple(t if t is None else (t.shape, t.stride(), t.dtype, t.device) for t in tensors)
    except RuntimeError:
        layout_of(given)  # one has no shape or no strides: it says which
        raise
    description = (*about, given.max_seqlen_q, given.max_seqlen_k, given.scale)
    layout = _layouts.get(description)
    if layout is None:
        layout = layout_of(given)
        remember(_layouts, description, layout)
    if tensors.q.stride(-1) != 1 or layout.negated:
        q = tensors.q.contiguous()  # The layout has its strides.
        tensors = tensors._replace(q=-q if layout.negated else q)
    return PagedCall(tensors, layout)


def layout_of(given: PagedArguments) -> PagedLayout:
    """What follows from the tensors of a call but for their values, checked; of a batch that torch traces too.

    There the sizes of the batch may be symbols. Those of the model become numbers: kernels are chosen by them.
    """
    refuse_unstrided(**{name: t for name, t in given.tensors.named.items() if t is not None})
    q, k_cache, v_cache, block_table, seq_lens, cu_seqlens_q, k_scale, v_scale = given.tensors
    if q.ndim != 3 or q.dtype not in DTYPES:
        raise ValueError(
            f"q has shape {tuple(q.shape)} and dtype {q.dtype}; expected [total_q, heads, head_dim] in float16, "
            "bfloat16 or float32"
        )
    if q.device.type not in ("cuda", "meta") and not interpreted():
        raise ValueError(f"q is on {q.device}; expected a CUDA device")
    pages, v_pages = Pages.of("k_cache", k_cache, q.device), Pages.of("v_cache", v_cache, q.device)
    _check_caches(q, k_cache, v_cache, pages, v_pages)
    _check_scaled(k_cache, k_scale, v_scale)
    total_q, heads, head_dim = q.shape[0], int(q.shape[1]), int(q.shape[2])
    batch = _batch(q, block_table, seq_lens, cu_seqlens_q)
    room = block_table.shape[1] * pages.block_size
    longest = room if given.max_seqlen_k is None else given.max_seqlen_k
    check_longest(max_seqlen_q=given.max_seqlen_q, max_seqlen_k=longest)
    if is_known(total_q * heads > INT32):
        raise ValueError(f"q has {total_q} x {heads} rows; expected at most {INT32}")
    scale = scale_of(given.scale, head_dim)
    scales = (*scale_strides("k_scale", k_scale, pages), *scale_strides("v_scale", v_scale, v_pages))
    q_strides = (heads * head_dim, head_dim) if q.stride(-1) != 1 or scale < 0 else q.stride()[:2]
    return PagedLayout(
        scale=max(abs(float(scale)), FLOAT32.tiny),
        negated=scale < 0,
        sizes=PackedSizes(
            batch, heads, pages.kv_heads, given.max_seqlen_q, longest, head_dim, v_pages.head_dim, total_q
        ),
        max_keys=torch.sym_min(room, longest),
        num_blocks=pages.num_blocks,
        block_size=pages.block_size,
        strides=(*q_strides, *k_cache.stride()[:3], *v_cache.stride()[:3], *scales, block_table.stride(0)),
        TOKEN_SCALES=any(each is not None and each.ndim == 3 for each in (k_scale, v_scale)),
        itemsizes=(q.itemsize, k_cache.itemsize),
    )


def refuse_other_slots(k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    """ValueError where a slot is not the same place in both caches, or has other heads."""
    if k_cache.shape[:3] != v_cache.shape[:3]:
        raise ValueError(
            f"v_cache has shape {tuple(v_cache.shape)}; expected k_cache's num_blocks, block_size and kv_heads, "
            f"{tuple(k_cache.shape[:3])}"
        )


def _check_caches(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, pages: Pages, v_pages: Pages) -> None:
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.dtype != q.dtype and not CACHE_DTYPES[cache.dtype].quantised:
            raise TypeError(f"{name} has dtype {cache.dtype}; expected q's, {q.dtype}, {quantised_names()}")
    if k_cache.dtype != v_cache.dtype:
        raise TypeError(f"v_cache has dtype {v_cache.dtype}; expected k_cache's, {k_cache.dtype}")
    refuse_other_slots(k_cache, v_cache)
    if pages.head_dim != q.shape[2]:
        raise ValueError(f"k_cache has head_dim {pages.head_dim}; expected q's, {q.shape[2]}")
    if q.shape[1] % pages.kv_heads or not q.shape[1]:
        raise ValueError(f"q has {q.shape[1]} heads and k_cache {pages.kv_heads}; expected a multiple of k_cache's")
    for name, dim in (("k_cache", pages.head_dim), ("v_cache", v_pages.head_dim)):
        if dim > MAX_HEAD_DIM:
            raise ValueError(f"{name} has head_dim {dim}; expected 1 to {MAX_HEAD_DIM}")


def _check_scaled(k_cache: torch.Tensor, k_scale: torch.Tensor | None, v_scale: torch.Tensor | None) -> None:
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if scale is not None and not CACHE_DTYPES[k_cache.dtype].quantised:
            raise TypeError(f"{name} is given for caches of {k_cache.dtype}; expected None, or caches of 8 bits")


def _batch(
    q: torch.Tensor, block_table: torch.Tensor, seq_lens: torch.Tensor, cu_seqlens_q: torch.Tensor | None
) -> int:
    """The number of sequences, on which the tensors of the batch agree."""
    batch = block_table.shape[0] if block_table.ndim else 0
    wanted = {"seq_lens": (seq_lens, (batch,)), "cu_seqlens_q": (cu_seqlens_q, (batch + 1,))}
    if block_table.ndim != 2 or block_table.shape[1] < 1 or not is_contiguous_last(block_table):
        raise ValueError(
            f"block_table has shape {tuple(block_table.shape)} and strides {block_table.stride()}; expected [batch, "
            "max_blocks], max_blocks at least 1, with a contiguous last dimension"
        )
    for name, (tensor, shape) in (("block_table", (block_table, None)), *wanted.items()):
        if tensor is None:
            continue
        if tensor.dtype != torch.int32 or tensor.device != q.device:
            raise TypeError(f"{name} is {tensor.dtype} on {tensor.device}; expected int32 on {q.device}")
        if shape is not None and (tuple(tensor.shape) != shape or not tensor.is_contiguous()):
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)} and strides {tensor.stride()}; expected {shape}, contiguous, "
                "as block_table"
            )
    if (cu_seqlens_q is None or not batch) and q.shape[0] != batch:
        expected = "as many, or cu_seqlens_q" if batch else "none"
        raise ValueError(f"q has {q.shape[0]} queries and block_table {batch} sequences; expected {expected}")
    return batch
