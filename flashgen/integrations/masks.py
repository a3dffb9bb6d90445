"""Masks of transformers without a matrix of queries by keys.

A mask travels through a model as one tensor with four dimensions, which transformers hands on as it is and
torch.compile takes as any other. Where every query sees the keys between two of them, it is integers:

    rows            int32 [batch, 1, q_len, 2]  the first and the last key that each query sees, counted in the cache
    rows and keys   int32 [batch, 1, n, 3]      the same, n the longer of both lengths, and which keys are no padding
    full            int32 [batch, 1, q_len, 1]  nothing is hidden
    causal          int32 [batch, 1, q_len, 0]  what comes after a query is, where the last query is at the last key

Queries are where a matrix has them, so that a model may take some of them; models that do, as `reading` says, have no
rows and keys. Any other mask, and each of three keys or fewer, is a bool [batch, 1, q_len, kv_len], as for torch's own
attention. None says that nothing but `is_causal` hides a key; it stands for full and causal in models that know their
own is_causal. Models that read their masks themselves, as `reading` says, get those of sdpa or of eager attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import pad
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    eager_mask,
    prepare_padding_mask,
    sdpa_mask,
)
from transformers.utils.import_utils import is_tracing

from flashgen.errors import ModelError
from flashgen.integrations.reading import ASKS_FOR_ALL, READS_BOOLS, READS_FLOATS, reading_of, takes_some_queries
from flashgen.integrations.runs import MaskFunction, is_causal_window, runs, sees_a_run

# What a mask of integers says, by how many it has for each query.
_COLUMNS = ("causal", "full", "rows")
# Keys of their own make one more.
_MOST_COLUMNS = len(_COLUMNS)


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
    asked: dict[str, Any] = {
        "batch_size": batch_size, "q_length": q_length, "kv_length": kv_length, "q_offset": q_offset,
        "kv_offset": kv_offset, "mask_function": mask_function, "attention_mask": attention_mask,
        "local_size": local_size, "use_vmap": use_vmap, "device": device,
    }  # fmt: skip
    reading = reading_of(config)
    if reading == READS_FLOATS:
        return eager_mask(**asked, **others)
    is_known = isinstance(q_offset, int) and isinstance(kv_offset, int)
    is_aligned = is_known and q_offset + q_length == kv_offset + kv_length
    if reading == READS_BOOLS:
        # Without a mask, the last query is at the last key here; with sdpa the first may be at the first.
        return sdpa_mask(
            **asked, allow_is_causal_skip=allow_is_causal_skip and is_aligned,
            allow_is_bidirectional_skip=allow_is_bidirectional_skip,
        )  # fmt: skip
    padding = _padding(attention_mask, kv_length, kv_offset, device)
    is_bidirectional = mask_function is bidirectional_mask_function
    # Whatever has as many columns as there are keys is a matrix: integers of a caller's are told from those made here.
    may_be_integers = kv_length > _MOST_COLUMNS
    is_local = _is_local(mask_function, local_size, kv_length, kv_offset)
    if padding is None:
        plain = "full" if is_bidirectional and allow_is_bidirectional_skip else ""
        if allow_is_causal_skip and is_aligned and not use_vmap and not is_local:
            plain = "causal"
        if plain and reading != ASKS_FOR_ALL:
            return None
        if plain and may_be_integers:
            return _plain(plain, batch_size, q_length, device)
    # A padding mask shorter than the text: its matrix shows to the layer that it does not fit.
    is_short = is_known and not is_bidirectional and q_offset + q_length > kv_offset + kv_length
    if not may_be_integers or is_short or use_vmap or not sees_a_run(mask_function, device) or _is_to_be_whole(
        mask_function, allow_is_bidirectional_skip if is_bidirectional else allow_is_causal_skip, q_length, is_aligned
    ):  # fmt: skip
        return sdpa_mask(**asked, allow_is_causal_skip=False)
    first, last = runs(mask_function, batch_size, q_length, kv_length, q_offset, kv_offset, device)
    made = _columns(first, last) if padding is None else _padded(first, last, padding)
    # Keys of their own lie along the queries, and would be cut with them.
    is_cut = made.shape[-1] == _MOST_COLUMNS and q_length > 1 and takes_some_queries(config)
    return sdpa_mask(**asked, allow_is_causal_skip=False) if is_cut else made


def form_of(mask: torch.Tensor, q_len: int, kv_len: int) -> str | None:
    """What the integers of a mask say of q_len queries and kv_len keys: of this module's docstring; None for a matrix.

    Raises ModelError for integers of another shape, which a model has made of its mask, and for a caller's.
    """
    if mask.dtype == torch.bool or mask.is_floating_point():
        return None
    if mask.dtype != torch.int32 or mask.ndim != 4 or mask.shape[-1] == kv_len:
        raise ModelError(
            f"attention_mask came to a layer as {mask.dtype} {tuple(mask.shape)}, whose integers could hide keys or be "
            "added to the scores; expected bools, True where a key is seen, or floats, which are added"
        )
    length, columns = mask.shape[2:]
    if columns == _MOST_COLUMNS and length >= max(q_len, kv_len):
        return "rows_and_keys"
    if columns < _MOST_COLUMNS and length == q_len:
        return _COLUMNS[columns]
    raise ModelError(
        f"attention_mask came to a layer as int32 {tuple(mask.shape)} for {q_len} queries and {kv_len} keys, which no "
        "mask is made as: this model takes masks for matrices; expected attention 'sdpa' or 'eager'"
    )


def _plain(form: str, batch: int, q_length: int, device: torch.device | str) -> torch.Tensor:
    """A mask of this form, which has nothing to say beside it."""
    return torch.zeros((batch, 1, q_length, _COLUMNS.index(form)), dtype=torch.int32, device=device)


def _padding(
    attention_mask: torch.Tensor | None, kv_length: int, kv_offset: Any, device: torch.device | str
) -> torch.Tensor | None:
    """Which of these keys are no padding, bool [batch, kv_length]; None where all are known to be none."""
    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is None:
        return None
    seen: torch.Tensor = padding[:, torch.arange(kv_length, device=device) + kv_offset]
    return seen if is_tracing(seen) or not bool(seen.all()) else None


def _padded(first: torch.Tensor, last: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    """Rows without the padding where it lies at the ends, else rows and keys."""
    q_length, kv_length = first.shape[1], padding.shape[1]
    if not is_tracing(padding):
        # Where all is padding the run has no keys.
        start, number = padding.int().argmax(-1, keepdim=True), padding.sum(-1, keepdim=True)
        k = torch.arange(kv_length, device=padding.device)
        if bool((padding == (k >= start) & (k < start + number)).all()):
            return _columns(first.maximum(start), last.minimum(start + number - 1))
    longest = max(q_length, kv_length)
    return _columns(*(pad(each.int(), (0, longest - each.shape[1])) for each in (first, last, padding)))


def _columns(*each: torch.Tensor) -> torch.Tensor:
    """Numbers [batch, length], one beside the other: int32 [batch, 1, length, n], each contiguous in memory."""
    return torch.stack(each, 1)[:, None].int().transpose(2, 3)


def _is_to_be_whole(mask_function: MaskFunction, may_be_none: bool, q_length: int, is_aligned: bool) -> bool:
    """Whether the model itself asks for a matrix of a plain mask, which it will read.

    Transformers too asks for a mask, of any kind, where it compiles single steps over a static cache.
    """
    if mask_function is causal_mask_function:
        return not may_be_none and (q_length > 1 or is_aligned)
    return mask_function is bidirectional_mask_function and not may_be_none


def _is_local(mask_function: MaskFunction, size: int | None, kv_length: int, kv_offset: Any) -> bool:
    """Whether a window or a chunk of this size may hide keys that causality does not, the last query at the last key.

    A chunk may begin anywhere among keys that do not begin with the first.
    """
    if size is None:
        return False
    begins = isinstance(kv_offset, int) and kv_offset == 0
    return kv_length > size or not (begins or is_causal_window(mask_function))
