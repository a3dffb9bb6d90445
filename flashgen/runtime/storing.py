"""Writing new keys and values into a paged cache."""

from __future__ import annotations

import math
from typing import Any

import torch

from flashgen.runtime.arguments import check_tensors, refuse_unstrided
from flashgen.runtime.cache_dtypes import CACHE_DTYPES
from flashgen.runtime.device.store import store_tokens
from flashgen.runtime.interpreter import interpreted
from flashgen.runtime.launching import launch
from flashgen.runtime.paged import Pages, refuse_other_slots, scale_strides
from flashgen.runtime.strides import is_contiguous_last, overlaps
from flashgen.runtime.torch_operator import operator


def store_kv(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slot_mapping: torch.Tensor,
    k_scale: torch.Tensor | None = None, v_scale: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Write new keys and values into a paged cache.

    k [tokens, kv_heads, head_dim] and v [tokens, kv_heads, v_head_dim], 16-bit or float32, last dimension contiguous.
    k_cache, v_cache [num_blocks, block_size, kv_heads, head_dim or v_head_dim], any strides with a contiguous last
    dimension: 16-bit, float32, float8_e4m3fn, float8_e5m2 or int8. slot_mapping int32 or int64 [tokens]: block *
    block_size + place in the block; a token of slot -1 is skipped, as is one of a slot beyond the cache.
    k_scale, v_scale: float32 [], [kv_heads] or [num_blocks, block_size, kv_heads]: what is written is the value over
    its scale, to the nearest number of the cache's dtype, ties to even, and its largest where it is beyond that.

    Launches on the current stream, without a synchronisation; one operator to torch.compile. Raises ValueError or
    TypeError for what does not fit, before anything is written.
    """
    _STORE.run((k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale))


def _store_both(*given: Any) -> None:
    # All is checked before any of it is written.
    for source, cache, slot_mapping, scale, strides in _checked(*given):
        if source.shape[0]:
            _store(source, cache, slot_mapping, scale, strides)


def _store_nothing(*given: Any) -> None:
    _checked(*given)


_STORE = operator(
    "store_kv",
    "(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slot_mapping, Tensor? k_scale, "
    "Tensor? v_scale) -> ()",
    _store_both,
    _store_nothing,
    shared=True,
)


def _checked(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slot_mapping: torch.Tensor,
    k_scale: torch.Tensor | None, v_scale: torch.Tensor | None,
) -> list[tuple[Any, ...]]:  # fmt: skip
    """What is written for keys and for values: the source, the cache, slots, the scale and its strides."""
    check_tensors(
        k=k, v=v, k_cache=k_cache, v_cache=v_cache, slot_mapping=slot_mapping, k_scale=k_scale, v_scale=v_scale
    )
    found = []
    for name, source, cache, scale in (("k", k, k_cache, k_scale), ("v", v, v_cache, v_scale)):
        _check_source(name, source, cache, slot_mapping)
        strides = scale_strides(f"{name}_scale", scale, Pages.of(f"{name}_cache", cache, source.device))
        found.append((source, cache, slot_mapping, scale, strides))
    refuse_other_slots(k_cache, v_cache)
    return found


def _check_source(name: str, source: torch.Tensor, cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    refuse_unstrided(**{name: source, f"{name}_cache": cache, "slot_mapping": slot_mapping})
    pages = Pages.of(f"{name}_cache", cache, source.device)
    if overlaps(cache):
        raise ValueError(f"{name}_cache has strides {cache.stride()}; expected a place in memory for each element")
    whole = source.ndim == 3 and is_contiguous_last(source)
    if not whole or tuple(source.shape[1:]) != (pages.kv_heads, pages.head_dim):
        raise ValueError(
            f"{name} has shape {tuple(source.shape)} and strides {source.stride()}; expected [tokens, "
            f"{pages.kv_heads}, {pages.head_dim}] with a contiguous last dimension"
        )
    if not source.dtype.is_floating_point or source.dtype.itemsize not in (2, 4):
        raise TypeError(f"{name} has dtype {source.dtype}; expected float16, bfloat16 or float32")
    if slot_mapping.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"slot_mapping has dtype {slot_mapping.dtype}; expected int32 or int64")
    if tuple(slot_mapping.shape) != (source.shape[0],) or slot_mapping.device != source.device:
        raise ValueError(
            f"slot_mapping has shape {tuple(slot_mapping.shape)} on {slot_mapping.device}; expected "
            f"[{source.shape[0]}], one slot for each token of {name}, on {source.device}"
        )
    if source.device.type not in ("cuda", "meta") and not interpreted():
        raise ValueError(f"{name} is on {source.device}; expected a CUDA device")


def _store(
    source: torch.Tensor, cache: torch.Tensor, slot_mapping: torch.Tensor, scale: torch.Tensor | None,
    strides: tuple[int, int, int],
) -> None:  # fmt: skip
    num_blocks, block_size, kv_heads, head_dim = cache.shape
    # What is neither converted nor scaled is copied, infinities too.
    copied = source.dtype == cache.dtype and scale is None
    least, most, _ = (-math.inf, math.inf, False) if copied else CACHE_DTYPES[cache.dtype]
    tile = {"HEADS": _power_of_two(kv_heads), "HEAD_DIM": _power_of_two(head_dim)}
    launch(
        store_tokens, source.shape[0],
        source, cache, slot_mapping.contiguous(), scale,
        *source.stride()[:2], *cache.stride()[:3], *strides,
        block_size, num_blocks * block_size, kv_heads, head_dim, least, most,
        **tile, ROUNDS=not cache.dtype.is_floating_point, num_warps=4,
    )  # fmt: skip


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
