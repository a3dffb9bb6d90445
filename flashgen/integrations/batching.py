"""Many sequences in one row, such as the requests of continuous batching over the keys of their caches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from inspect import signature
from typing import Any

import torch
from transformers.generation.continuous_batching import ContinuousBatchingManager, PagedAttentionCache

from flashgen.errors import ModelError
from flashgen.integrations.reading import READS_BOOLS, READS_FLOATS, reading_of

_admitted: set[str] = set()
# Before 5.20 the cache is told where to read and write by arguments of their own.
_UPDATE_TAKES_ALL = "kwargs" in signature(PagedAttentionCache.update).parameters


def admit(name: str) -> None:
    """Let `generate_batch` take a model whose attention has this name.

    transformers asks for the name in a list of its own and has no door for another; its paged interface itself needs
    nothing more. Models with other attention are treated as before. Models that read their masks are a ModelError when
    they come: transformers makes those of all requests at once for names of its own alone.
    """
    if not _admitted:
        _open()
    _admitted.add(name)


def _open() -> None:
    choose = ContinuousBatchingManager.switch_to_cb_friendly_attn

    @wraps(choose)
    def chosen(self: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        # Of a composite model the part that generates is batched, with the attention of its own.
        config = model.config.get_text_config()
        if config._attn_implementation not in _admitted:
            choose(self, model, *args, **kwargs)
            return
        if reading_of(config) in (READS_BOOLS, READS_FLOATS):
            raise ModelError(
                f"models of {type(config).__name__} read their masks, and where requests are batched continuously "
                "transformers makes none but for attention 'sdpa' and 'eager'; expected one of the two"
            )

    ContinuousBatchingManager.switch_to_cb_friendly_attn = chosen  # type: ignore[method-assign]


def keys_of_requests(
    cache: PagedAttentionCache, module: torch.nn.Module, key: torch.Tensor, value: torch.Tensor, paged: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Write a layer's new keys and values [1, kv_heads, tokens, dim] into its cache; those of all requests, packed.

    `paged` are the layer's arguments.
    """
    if _UPDATE_TAKES_ALL:
        found: tuple[torch.Tensor, torch.Tensor] = cache.update(
            key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=paged
        )
        return found
    # Token by token.
    key, value = cache.update(
        key_states=key, value_states=value, layer_idx=module.layer_idx, read_index=paged["read_index"],
        write_index=paged["write_index"],
    )  # fmt: skip
    return key.transpose(0, 1)[None], value.transpose(0, 1)[None]


def window_of(module: torch.nn.Module, paged: Mapping[str, Any]) -> int | None:
    """How many keys a query of a layer sees at most; None for all.

    paged: the layer's arguments. Some models tell their windows to masks alone; their configs have them, by which
    transformers lays out the caches.
    """
    told: int | None = paged.get("sliding_window")
    if told is not None:
        return told
    config = module.config
    kinds = getattr(config, "layer_types", None)
    slides = kinds is None or kinds[module.layer_idx] == "sliding_attention"
    return getattr(config, "sliding_window", None) if slides else None


def packed_rows(q_len: int, paged: Mapping[str, Any], is_causal: bool, window: int | None) -> torch.Tensor:
    """The keys that each query sees, as a mask of rows int32 [1, 1, q_len, 2].

    paged: a layer's arguments, cu_seq_lens_q and cu_seq_lens_k int32 [requests + 1], the latter for layers of each kind
    where the layer has no cache of its own, since it shares the keys of another; the last query of a request is at its
    last key; `window` keys at most. A query behind the last request sees none.
    """
    starts_q, starts_k = paged["cu_seq_lens_q"].long(), paged["cu_seq_lens_k"]
    if isinstance(starts_k, Mapping):
        starts_k = starts_k["full_attention" if window is None else "sliding_attention"]
    starts_k = starts_k.long()
    # Layers that share keys may take the last queries alone.
    token = torch.arange(q_len, device=starts_q.device) + (starts_q[-1] - q_len).clamp(min=0)
    request = torch.searchsorted(starts_q, token, right=True) - 1
    inside = (request < starts_q.shape[0] - 1) & (request >= 0)
    request = request.clamp(0, starts_q.shape[0] - 2)
    first, stop = starts_k[request], starts_k[request + 1]
    last = stop - (starts_q[request + 1] - token) if is_causal else stop - 1
    if window is not None:
        first = first.maximum(last - window + 1)
    return torch.stack((first, torch.where(inside, last, first - 1)))[None, None].int().transpose(2, 3)
