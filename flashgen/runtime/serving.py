"""What serving needs beside attention: writing a paged cache, merging partial results, checking what a scheduler made.

None of it depends on the variant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from flashgen.runtime.arguments import (
    check_longest,
    check_paged_types,
    check_scalar,
    check_tensors,
    is_contiguous_last,
    refuse_all_but_tensors,
    refuse_unstrided,
)
from flashgen.runtime.device.store import store_tokens
from flashgen.runtime.interpreter import interpreted
from flashgen.runtime.launching import launch
from flashgen.runtime.operator import operator
from flashgen.runtime.overlap import overlaps
from flashgen.runtime.paged import CACHE_DTYPES, Pages, refuse_other_slots, scale_strides


def merge_states(
    outs: torch.Tensor | Sequence[torch.Tensor], lses: torch.Tensor | Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of attention over all keys, from those over parts that have no key in common.

    outs: each [batch, heads, q_len, v_head_dim] with lses [batch, heads, q_len], or each [total_q, heads, v_head_dim]
    with lses [heads, total_q]; natural logarithms, minus infinity for a row that saw no key of a part, whose out then
    counts for nothing, NaN included. Computed in float32, float64 for float64. A row that saw none of any part has out
    0 and lse minus infinity. Differentiable.

    Raises ValueError or TypeError for what does not fit.
    """
    for name, given in (("outs", outs), ("lses", lses)):
        if not isinstance(given, (torch.Tensor, Sequence)):
            raise TypeError(f"{name} is {type(given).__name__}; expected a tensor, or a sequence of them")
        if isinstance(given, torch.Tensor):
            refuse_unstrided(**{name: given})
            if not given.ndim:
                raise ValueError(f"{name} has shape (); expected a first dimension, of the parts")
    if len(outs) != len(lses) or not len(outs):
        raise ValueError(f"there are {len(outs)} outs and {len(lses)} lses; expected as many, one at least")
    for number, (out, lse) in enumerate(zip(outs, lses, strict=True)):
        for name, part in ((f"outs[{number}]", out), (f"lses[{number}]", lse)):
            refuse_all_but_tensors(**{name: part})
            refuse_unstrided(**{name: part})
            if not part.is_floating_point() or part.device != outs[0].device:
                raise TypeError(f"{name} is {part.dtype} on {part.device}; expected floats on {outs[0].device}")
        packed = out.ndim == 3
        expected = (out.shape[1], out.shape[0]) if packed else out.shape[:-1]
        if out.ndim not in (3, 4) or tuple(lse.shape) != tuple(expected) or out.shape != outs[0].shape:
            raise ValueError(
                f"outs[{number}] has shape {tuple(out.shape)} and lses[{number}] {tuple(lse.shape)}; expected "
                "[batch, heads, q_len, v_head_dim] with [batch, heads, q_len], or [total_q, heads, v_head_dim] with "
                "[heads, total_q], the same for all"
            )
    dtype = torch.promote_types(outs[0].dtype, torch.float32)
    each = torch.stack([lse.to(dtype) for lse in lses])
    # The result does not depend on what is subtracted.
    highest = each.detach().amax(0)
    highest = torch.where(highest.isinf(), 0.0, highest)
    weights = torch.exp(each - highest)
    total = weights.sum(0)
    unseen = total == 0
    total = torch.where(unseen, 1.0, total)
    weights = weights / total
    # Where a part has no key nobody may have written its out, and 0 times NaN is NaN.
    without = each == -math.inf
    out = sum(
        _of_rows(weight, out.ndim) * out.to(dtype).masked_fill(_of_rows(empty, out.ndim), 0.0)
        for weight, empty, out in zip(weights, without, outs, strict=True)
    )
    assert isinstance(out, torch.Tensor)
    return out.to(outs[0].dtype), torch.where(unseen, -math.inf, torch.log(total) + highest).to(lses[0].dtype)


def _of_rows(weight: torch.Tensor, ndim: int) -> torch.Tensor:
    return (weight if ndim == 4 else weight.transpose(0, 1)).unsqueeze(-1)


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
    most = math.inf if copied else CACHE_DTYPES[cache.dtype].most
    least = -128.0 if cache.dtype == torch.int8 else -most
    tile = {"HEADS": _power_of_two(kv_heads), "HEAD_DIM": _power_of_two(head_dim)}
    launch(
        store_tokens, source.shape[0],
        source, cache, slot_mapping.contiguous(), scale,
        *source.stride()[:2], *cache.stride()[:3], *strides,
        block_size, num_blocks * block_size, kv_heads, head_dim, least, most,
        **tile, ROUNDS=cache.dtype == torch.int8, num_warps=4,
    )  # fmt: skip


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def check(
    q: torch.Tensor, k_cache: torch.Tensor, block_table: torch.Tensor, seq_lens: torch.Tensor, *,
    cu_seqlens_q: torch.Tensor | None = None, max_seqlen_q: int = 1, max_seqlen_k: int | None = None,
) -> None:  # fmt: skip
    """Raise ValueError that says what is wrong with the numbers that a call of attention_paged is given, all of it.

    Reads them on the host, for which it waits: for finding a scheduler's mistakes. Tensors may be the host's copies, of
    64 bits too; of q and k_cache only the sizes count. attention_paged itself looks at shapes, dtypes and devices
    alone; of wrong numbers it reads and writes nothing out of bounds, and what it returns for the sequences concerned
    means nothing. An end before the last row of q is wrong here, though attention_paged takes it: rows behind it are
    nobody's. Raises TypeError for what is no tensor of integers, or no length.
    """
    check_paged_types(
        max_seqlen_q, max_seqlen_k, False, q=q, k_cache=k_cache, block_table=block_table, seq_lens=seq_lens,
        cu_seqlens_q=cu_seqlens_q,
    )  # fmt: skip
    _refuse_other_numbers(block_table=block_table, seq_lens=seq_lens, cu_seqlens_q=cu_seqlens_q)
    _refuse_other_dims(
        q=(q, "[total_q, ...]", q.ndim > 0),
        k_cache=(k_cache, "[num_blocks, block_size, kv_heads, head_dim]", k_cache.ndim == 4 and k_cache.shape[1] > 0),
        block_table=(
            block_table,
            "[batch, max_blocks], max_blocks at least 1",
            block_table.ndim == 2 and block_table.shape[1] > 0,
        ),
    )
    num_blocks, block_size = k_cache.shape[:2]
    batch, max_blocks = block_table.shape
    room = max_blocks * block_size
    longest = room if max_seqlen_k is None else max_seqlen_k
    check_longest(max_seqlen_q=max_seqlen_q, max_seqlen_k=longest)
    _refuse_other_sizes("block_table", batch, seq_lens=(seq_lens, batch), cu_seqlens_q=(cu_seqlens_q, batch + 1))
    table, lengths = block_table.tolist(), seq_lens.tolist()
    most = min(longest, room)
    found = [
        f"seq_lens[{b}] is {length}; expected 0 to {most}"
        for b, length in enumerate(lengths)
        if not 0 <= length <= most
    ]
    for b, length in enumerate(lengths):
        used = min(max_blocks, -(-max(length, 0) // block_size))
        found += [
            f"block_table[{b}, {place}] is {page}; expected 0 to {num_blocks - 1}"
            for place, page in enumerate(table[b][:used])
            if not 0 <= page < num_blocks
        ]
    if cu_seqlens_q is not None:
        found += _wrong_ends("q", "queries", cu_seqlens_q.tolist(), q.shape[0], max_seqlen_q)
    elif q.shape[0] != batch:
        found.append(f"q has {q.shape[0]} queries and block_table {batch} sequences; expected as many, or cu_seqlens_q")
    if found:
        raise ValueError("; ".join(found))


def check_varlen(
    q: torch.Tensor, k: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor, max_seqlen_q: int,
    max_seqlen_k: int,
) -> None:  # fmt: skip
    """Raise ValueError that says what is wrong with the numbers that a call of attention_varlen is given, all of it.

    q [total_q, heads, head_dim], k [total_k, kv_heads, head_dim], cu_seqlens int32 [batch + 1]. Reads them on the host,
    for which it waits. attention_varlen itself looks at shapes, dtypes and devices alone; where numbers are wrong it
    reads and writes nothing out of bounds, and what it returns of any sequence means nothing: programs find theirs by a
    search in cu_seqlens. Ends before the last token are wrong here, though attention_varlen takes them: it leaves 0
    behind them.
    """
    refuse_all_but_tensors(q=q, k=k, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    for name, length in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        check_scalar(name, length, int)
    check_longest(max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k)
    _refuse_other_dims(q=(q, "[total_q, ...]", q.ndim > 0), k=(k, "[total_k, ...]", k.ndim > 0))
    ends = max(1, cu_seqlens_q.numel())
    _refuse_other_sizes("cu_seqlens_q", ends - 1, cu_seqlens_q=(cu_seqlens_q, ends), cu_seqlens_k=(cu_seqlens_k, ends))
    _refuse_other_numbers(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    found = [
        *_wrong_ends("q", "queries", cu_seqlens_q.tolist(), q.shape[0], max_seqlen_q),
        *_wrong_ends("k", "keys", cu_seqlens_k.tolist(), k.shape[0], max_seqlen_k),
    ]
    if found:
        raise ValueError("; ".join(found))


def _refuse_other_numbers(**tensors: torch.Tensor | None) -> None:
    """TypeError for what has other numbers than integers, or none: the host may have them longer than kernels do."""
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        refuse_unstrided(**{name: tensor})
        if tensor.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{name} is {tensor.dtype}; expected int32")
        if tensor.is_meta:
            raise TypeError(f"{name} is on meta; expected a tensor that has its numbers")


def _refuse_other_dims(**shapes: tuple[torch.Tensor, str, bool]) -> None:
    """ValueError for a tensor that is not of the form that is wanted."""
    for name, (tensor, wanted, fits) in shapes.items():
        if not fits:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {wanted}")


def _refuse_other_sizes(of: str, batch: int, **numbers: tuple[torch.Tensor | None, int]) -> None:
    """ValueError for what has not as many numbers as it should beside a tensor `of` so many sequences."""
    wrong = [
        f"{name} has shape {tuple(tensor.shape)}; expected [{size}], as {of} is of {batch} sequences"
        for name, (tensor, size) in numbers.items()
        if tensor is not None and tuple(tensor.shape) != (size,)
    ]
    if wrong:
        raise ValueError("; ".join(wrong))


def _wrong_ends(side: str, what: str, starts: Sequence[int], total: int, longest: int) -> list[str]:
    """What is wrong with cu_seqlens of queries or keys, of which there are `total`."""
    found = []
    if starts[0] != 0:
        found.append(f"cu_seqlens_{side}[0] is {starts[0]}; expected 0")
    if starts[-1] != total:
        found.append(f"cu_seqlens_{side}[{len(starts) - 1}] is {starts[-1]}; expected {total}, the number of {what}")
    for b, (start, stop) in enumerate(pairwise(starts)):
        if not 0 <= stop - start <= longest:
            found.append(f"sequence {b} has {stop - start} {what}; expected 0 to max_seqlen_{side}, {longest}")
    return found
