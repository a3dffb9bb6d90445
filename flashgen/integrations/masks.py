"""Masks of transformers without a matrix of queries by keys.

A mask travels through a model as one tensor with four dimensions, which transformers hands on as it is and
torch.compile takes as any other. Where every query sees the keys between two of them, it is integers:

    rows            int32 [batch, 1, 2, q_len]  the first and the last key that each query sees, counted in the cache
    rows and keys   int32 [batch, 1, 3, n]      the same, n the longer of both lengths, and which keys are no padding

Any other mask is a bool [batch, 1, q_len, kv_len], as for torch's own attention. None says that nothing but `is_causal`
hides a key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import pad
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    prepare_padding_mask,
    sdpa_mask,
)
from transformers.utils.import_utils import is_tracing

MaskFunction = Callable[..., Any]

# The code of what transformers makes its sliding, chunked and packed masks by.
_JOINED = and_masks().__code__
# How many distances one step of the search for a row's first and last key tells apart.
_DIGIT = 64
# While torch.compile traces, the number of keys may be a symbol: the search is as deep as for any.
_MOST_KEYS = _DIGIT**5


def interface_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: MaskFunction = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    local_size: int | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    config: Any = None,
    **others: Any,
) -> torch.Tensor | None:
    """What `transformers.AttentionMaskInterface` calls for a mask; None, or a tensor as this module's docstring says.

    mask_function(batch, head, q, k) is that of transformers, on positions in the sequence, of which the queries' begin
    at q_offset and the keys' at kv_offset, integers or tensors []; attention_mask bool [batch, keys seen so far] is the
    padding. Outside of torch.compile it waits for the device where there is one, as the masks of transformers do.
    """
    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None:
        padding = padding[:, torch.arange(kv_length, device=device) + kv_offset]
        if not is_tracing(padding) and bool(padding.all()):
            padding = None
    is_known = isinstance(q_offset, int) and isinstance(kv_offset, int)
    is_aligned = is_known and q_offset + q_length == kv_offset + kv_length
    is_bidirectional = mask_function is bidirectional_mask_function
    if padding is None:
        if is_bidirectional and allow_is_bidirectional_skip:
            return None
        if allow_is_causal_skip and is_aligned and not use_vmap and not _is_local(local_size, kv_length, kv_offset):
            return None
    wanted_whole = is_aligned and not (
        allow_is_bidirectional_skip
        if is_bidirectional
        else allow_is_causal_skip or mask_function is not causal_mask_function or q_length == 1
    )
    if use_vmap or wanted_whole or not _sees_a_run(mask_function):
        return sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
            allow_is_causal_skip=False, use_vmap=use_vmap, device=device,
        )  # fmt: skip
    first, last = _rows(mask_function, batch_size, q_length, kv_length, q_offset, kv_offset, device)
    if padding is None:
        return torch.stack((first, last), 1)[:, None].int()
    if not is_tracing(padding):
        start, stop = padding.int().argmax(-1), kv_length - padding.flip(-1).int().argmax(-1)
        if bool((stop - start == padding.sum(-1)).all()):
            return torch.stack((first.maximum(start[:, None]), last.minimum(stop[:, None] - 1)), 1)[:, None].int()
    longest = max(q_length, kv_length)
    parts = (pad(each.int(), (0, longest - each.shape[1])) for each in (first, last, padding))
    return torch.stack(tuple(parts), 1)[:, None]


def is_rows(mask: torch.Tensor) -> bool:
    """Whether a mask is one of rows, with or without keys."""
    return mask.dtype == torch.int32


def _is_local(size: int | None, kv_length: int, kv_offset: Any) -> bool:
    """Whether a window or a chunk of this size hides what causality does not: keys from 0 on, no more than it has."""
    return size is not None and not (isinstance(kv_offset, int) and kv_offset == 0 and kv_length <= size)


def _sees_a_run(mask_function: MaskFunction) -> bool:
    """Whether the keys that a query sees stand side by side, its own among them.

    So it is with the causal, sliding, chunked and packed masks of transformers; unions with other masks, which have
    another outermost function, are of any kind.
    """
    is_whole = mask_function is causal_mask_function or mask_function is bidirectional_mask_function
    return is_whole or getattr(mask_function, "__code__", None) is _JOINED


def _rows(
    mask_function: MaskFunction,
    batch: int,
    q_length: int,
    kv_length: int,
    q_offset: Any,
    kv_offset: Any,
    device: torch.device | str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first and the last key of each query, [batch, q_length], counted from the first of the cache."""
    q = (torch.arange(q_length, device=device) + q_offset - kv_offset).expand(batch, -1)
    low, high = torch.zeros_like(q), torch.full_like(q, kv_length - 1)
    if mask_function is bidirectional_mask_function:
        return low, high
    if mask_function is causal_mask_function:
        return low, q.minimum(high)
    sequence, head = (
        torch.arange(batch, device=device)[:, None, None],
        torch.zeros((), device=device, dtype=torch.int64),
    )
    own = q.clamp(0, kv_length - 1)

    def sees(k: torch.Tensor) -> torch.Tensor:
        return mask_function(sequence, head, (q + kv_offset)[:, :, None], k + kv_offset)

    reach = _MOST_KEYS if is_tracing(q) else kv_length
    first = own - _farthest(lambda d: sees(own[:, :, None] - d), own, reach)
    last = own + _farthest(lambda d: sees(own[:, :, None] + d), high - own, reach)
    # A query that does not see its own place sees none.
    return first, torch.where(sees(own[:, :, None])[:, :, 0], last, first - 1)


def _farthest(sees: MaskFunction, most: torch.Tensor, reach: int) -> torch.Tensor:
    """The greatest distance up to `most` [batch, q_length] at which a key is seen, digit by digit: nearer ones are too.

    `sees` takes distances [batch, q_length, n]; no distance is as great as `reach`.
    """
    digits = torch.arange(1, _DIGIT, device=most.device)
    step = 1
    while step * _DIGIT < reach:
        step *= _DIGIT
    found = torch.zeros_like(most)
    while step:
        tried = found[:, :, None] + digits * step
        seen = sees(tried.minimum(most[:, :, None])) & (tried <= most[:, :, None])
        found = found + step * seen.sum(-1)
        step //= _DIGIT
    return found
