"""Documents that follow each other in one row, where the caller says where they end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import pad
from transformers.utils.import_utils import is_tracing

from flashgen.errors import ModelError
from flashgen.integrations.batching import packed_rows
from flashgen.integrations.masks import form_of
from flashgen.integrations.reading import READS_BOOLS, READS_FLOATS, reading_of, reads_text


def within_documents(
    mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor, packed: Mapping[str, Any], is_causal: bool,
    module: torch.nn.Module,
) -> torch.Tensor | None:  # fmt: skip
    """A layer's mask, within the documents of one row where the caller gives their ends.

    packed: the layer's arguments, cu_seq_lens_q and cu_seq_lens_k among them where ends are given. Where position_ids
    say the same the mask may know already; it has to in a model that reads its mask itself.
    """
    if any(packed.get(name) is None for name in ("cu_seq_lens_q", "cu_seq_lens_k")):
        return mask
    q_len, kv_len = query.shape[2], key.shape[2]
    config = getattr(module, "config", None)
    # Models hand all that they are called with to each of their parts: to those that read images, and to layers whose
    # keys are not of the text. The latter are not causal, and may not say so.
    is_of_text = reads_text(config) and (getattr(module, "is_causal", False) or q_len == kv_len)
    if packed["cu_seq_lens_q"].shape[0] <= 2 or not is_of_text:
        return mask
    if query.shape[0] != 1:
        raise ModelError(
            f"cu_seq_lens_q came with {query.shape[0]} sequences; expected one, in which documents follow each other"
        )
    form = None if mask is None else form_of(mask, q_len, kv_len)
    own = packed_rows(q_len, packed, False, None)
    if reading_of(config) in (READS_BOOLS, READS_FLOATS):
        _refuse_others(mask, own, packed["cu_seq_lens_k"])
        return mask
    if mask is None or form in ("causal", "full"):
        return packed_rows(q_len, packed, is_causal if mask is None else form == "causal", None)
    if form is None:
        hidden = ~_between(own, kv_len)
        return mask & ~hidden if mask.dtype == torch.bool else mask.masked_fill(hidden, -torch.inf)
    ends = mask[:, :, :q_len]
    ends = torch.cat((ends[..., :1].maximum(own[..., :1]), ends[..., 1:2].minimum(own[..., 1:])), -1)
    if form == "rows":
        return ends
    return torch.cat((pad(ends, (0, 0, 0, mask.shape[2] - q_len)), mask[..., 2:]), -1)


def _between(rows: torch.Tensor, kv_len: int) -> torch.Tensor:
    """Which keys lie between the ends of each query, bool [1, 1, q_len, kv_len]."""
    k = torch.arange(kv_len, device=rows.device)
    return (k >= rows[..., :1]) & (k <= rows[..., 1:])


def _refuse_others(mask: torch.Tensor | None, own: torch.Tensor, ends: torch.Tensor) -> None:
    """ModelError where a mask that a model has read shows a query another document's keys.

    It is looked at on the host, and not while torch.compile traces.
    """
    if is_tracing(own):
        return
    if mask is not None:
        seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min
        # Behind the documents a model may have keys of its own.
        other = ~_between(own, mask.shape[-1]) & (torch.arange(mask.shape[-1], device=mask.device) < ends[-1])
        if not bool((seen & other).any()):
            return
    raise ModelError(
        "cu_seq_lens_q came to a layer of a model that reads its mask, which shows other documents too; expected "
        "position_ids that begin again with each document, no attention_mask and use_cache=False"
    )
