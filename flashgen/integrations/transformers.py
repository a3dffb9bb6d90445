"""Generated attention for models of transformers: `register()`, then `model.set_attn_implementation("generated")`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.generation.continuous_batching import PagedAttentionCache

from flashgen.errors import ModelError, UsageError
from flashgen.integrations.batching import admit, keys_of_requests, packed_rows, window_of
from flashgen.integrations.chosen import among, chosen_blocks
from flashgen.integrations.documents import within_documents
from flashgen.integrations.masks import form_of, interface_mask
from flashgen.integrations.variants import attention_of


def register(name: str = "generated") -> None:
    """Put generated attention behind the attention and the mask interface of transformers, under this name.

    After it `model.set_attn_implementation(name)` is all that a model needs, for training, `generate` and
    `generate_batch`. The variant that a layer asks for is built at its first call and kept in the cache folder.
    Raises UsageError for a name that transformers takes for one of its own.
    """
    if not name or "flash" in name or "|" in name or name in ("eager", "sdpa", "flex_attention"):
        raise UsageError(f"the name {name!r} means something else to transformers; expected one such as 'generated'")
    AttentionInterface.register(name, generated_attention)
    AttentionMaskInterface.register(name, interface_mask)
    admit(name)


def generated_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    cache: PagedAttentionCache | None = None,
    indices: torch.Tensor | None = None,
    block_indices: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """What `transformers.AttentionInterface` calls for a layer.

    query [batch, heads, q_len, head_dim], key [batch, kv_heads, kv_len, head_dim], value [batch, kv_heads, kv_len,
    v_head_dim]. attention_mask: what `interface_mask` made, or a mask [batch|1, heads|1, q_len, kv_len] of a caller's,
    bool, or floats that are added to the scores. softcap bounds the scores, s_aux [heads] are sinks and so are sinks
    [batch, heads, q_len, 1], of each query its own; position_bias [batch|1, heads|1, q_len, kv_len] is added to the
    scores. indices, int [batch, q_len, n], are the only keys that a query sees, of those that the mask shows;
    block_indices, int [batch, kv_heads, q_len, n], the only blocks of keys. dropout is the probability with which
    weights are dropped, above 0 in training alone. Returns [batch, q_len, heads, v_head_dim] and None in the place of
    the weights. Raises ModelError for what it does not have.
    """
    _check(others)
    if query.shape[0] == 1:
        # Learned queries may be the same for all sequences.
        query = query.expand(key.shape[0], -1, -1, -1)
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if isinstance(cache, PagedAttentionCache):
        # Newer versions of transformers do this before they call the interface.
        key, value = keys_of_requests(cache, module, key, value, others)
    if "read_index" in others:
        attention_mask = packed_rows(query.shape[2], others, is_causal, window_of(module, others))
    else:
        attention_mask = within_documents(attention_mask, query, key, others, is_causal, module)
    if indices is not None:
        attention_mask = among(attention_mask, indices, key.shape[2])
    form, inputs = _mask(attention_mask, query, key, is_causal)
    biases = [position_bias] if position_bias is not None else []
    if form == "added" and attention_mask is not None:
        form, biases = "full", [attention_mask, *biases]
    shaped = [_bias(each, query, key) for each in biases]
    inputs |= {f"bias_{place}": bias for place, (_, bias) in enumerate(shaped)}
    if s_aux is not None:
        inputs["sinks"] = s_aux
    blocks = {} if block_indices is None else chosen_blocks(module, block_indices, key)
    added = tuple(axes for axes, _ in shaped)
    attention = attention_of(form, softcap, s_aux is not None, added, dropout > 0, bool(blocks))
    drop = {"dropout_p": dropout} if dropout > 0 else {}
    given = {**inputs, **blocks, **drop, "scale": scaling}
    if sinks is None:
        out = attention(query, key, value, **given)
    else:
        out = _beside(sinks, *attention(query, key, value, return_lse=True, **given))
    return out.transpose(1, 2).contiguous(), None


def _beside(sinks: torch.Tensor, out: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """What is left of each row, [batch, heads, q_len, v_head_dim], beside a logit of its own that has no value."""
    return (out * torch.sigmoid(lse[..., None] - sinks.float())).to(out.dtype)


# What changes attention and is not here, and what it asks for.
_LACKING = {
    "output_attentions": "the weights, which are never made",
    "head_mask": "weights of heads, which generated attention lacks",
}


def _check(others: Mapping[str, Any]) -> None:
    for name, what in _LACKING.items():
        if others.get(name) is not None and others[name] is not False:
            raise ModelError(f"{name} asks for {what}; expected attention 'eager'")


def _mask(
    mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor, is_causal: bool
) -> tuple[str, dict[str, torch.Tensor]]:
    """The form of a mask and the inputs that its variant has."""
    batch, heads, q_len, _ = query.shape
    kv_len = key.shape[2]
    if mask is None:
        return ("causal" if is_causal and q_len > 1 else "full"), {}
    form = form_of(mask, q_len, kv_len)
    if form is not None:
        # As it is made nothing is copied here; `generate` lays a static cache's mask out anew.
        columns = [column.contiguous() for column in mask[:, 0].expand(batch, -1, -1).unbind(-1)]
        if form == "rows":
            return form, {"first": columns[0], "last": columns[1]}
        if form == "rows_and_keys":
            first, last, seen = columns
            return form, {"first": first[:, :q_len], "last": last[:, :q_len], "seen": seen[:, :kv_len].bool()}
        return form, {}
    if mask.dtype != torch.bool:
        return "added", {}
    _check_shape("attention_mask", mask, (batch, heads, q_len, kv_len))
    if mask.shape[1] == 1:
        return "matrix", {"seen": mask[:, 0].expand(batch, q_len, kv_len)}
    return "matrices", {"seen": mask.expand(batch, heads, q_len, kv_len)}


def _check_shape(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    if tensor.ndim != 4 or any(own not in (size, 1) for own, size in zip(tensor.shape, shape, strict=True)):
        raise ModelError(
            f"{name} came to a layer with shape {tuple(tensor.shape)}; expected [batch, heads, q_len, kv_len] of "
            f"{shape}, or 1 in the place of some"
        )


def _bias(bias: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> tuple[str, torch.Tensor]:
    """By which indices a tensor is added to the scores, and the tensor with those dimensions."""
    batch, heads, q_len, _ = query.shape
    kv_len = key.shape[2]
    _check_shape("a mask of floats, or position_bias,", bias, (batch, heads, q_len, kv_len))
    bias = bias.float().contiguous()
    if bias.shape[1] == 1:
        return "b", bias[:, 0].expand(batch, q_len, kv_len)
    if bias.shape[0] == 1:
        return "h", bias[0].expand(heads, q_len, kv_len)
    return "bh", bias.expand(batch, heads, q_len, kv_len)
