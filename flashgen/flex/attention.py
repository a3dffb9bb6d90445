"""FlexAttention's own signature, served by generated kernels."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention.flex_attention import BlockMask, noop_mask

from flashgen.flex.blocks import check_lists, hides_more, like_mask_of_blocks, mask_of_blocks
from flashgen.flex.kernels import kernels_for
from flashgen.flex.mods import Mod

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import AuxRequest

# What torch calls the parts of a config; a prefix says for which pass.
_CONFIG = {"BLOCK_M": "BM", "BLOCK_N": "BN", "num_warps": "num_warps", "num_stages": "num_stages"}


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Mod | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
    *,
    return_aux: AuxRequest | None = None,
) -> Any:
    """torch.nn.attention.flex_attention.flex_attention, by generated kernels.

    query [batch, heads, q_len, head_dim], key [batch, kv_heads, kv_len, head_dim], value [batch, kv_heads, kv_len,
    v_head_dim]: float16, bfloat16 or float32. Returns out [batch, heads, q_len, v_head_dim]; with `return_lse` also the
    natural log-sum-exp, float32 [batch, heads, q_len]; with `return_aux` out and an AuxOutput.

    score_mod(score, b, h, q_idx, kv_idx) and the mask_mod of `block_mask` are traced at their first call, once for each
    code and kind of captured values: another value of a captured number or tensor builds nothing anew. Tensors that
    they capture have gradients where they require them. Of the block mask nothing else is read, unless its blocks
    were listed by hand. `kernel_options` that name BLOCK_M, BLOCK_N, num_warps and num_stages, all four, are the
    config of the forward pass; others, which are for torch's kernels, change nothing.

    Raises ModError, a ValueError that names the line of the mod, for what the language does not have; ValueError or
    TypeError for arguments that do not fit.
    """
    if return_lse and return_aux is not None:
        raise ValueError("return_lse and return_aux are both given; expected return_aux=AuxRequest(lse=True) alone")
    _check_arguments(query, key, value, block_mask, enable_gqa)
    batch, heads, q_len, _ = query.shape
    kv_len = key.shape[2]
    mask_mod = None if block_mask is None else _mask_mod(block_mask, batch, heads, q_len, kv_len)
    # torch.compile, which may not know the lengths, decides by an `if` alone.
    many_queries = True if q_len > kv_len else False  # noqa: SIM210
    like = _like(mask_mod, block_mask) if torch.compiler.is_compiling() else None
    kernels, values = kernels_for(score_mod, mask_mod, many_queries, like)
    query = kernels.beside(query, values)
    arguments = kernels.arguments(values, (batch, heads, q_len, kv_len), query.device)
    wants_lse = return_lse or (return_aux is not None and return_aux.lse)
    wants_max = return_aux is not None and getattr(return_aux, "max_scores", False)
    if kernel_options:
        arguments["config"] = _config(kernel_options)
    scale = _number(scale)
    found = kernels.attention(query, key, value, scale=scale, return_lse=wants_lse, return_max=wants_max, **arguments)
    return found if return_aux is None else _with_aux(found, wants_lse, wants_max)


def _with_aux(found: Any, wants_lse: bool, wants_max: bool) -> tuple[torch.Tensor, Any]:
    """out and an AuxOutput of what else was found."""
    # Older versions of torch, which have none, ask for none.
    from torch.nn.attention.flex_attention import AuxOutput

    out, *more = found if isinstance(found, tuple) else (found,)
    named = dict(zip([*["lse"] * wants_lse, *["max_scores"] * wants_max], more, strict=True))
    return out, AuxOutput(**named)


def _check_arguments(query: Any, key: Any, value: Any, block_mask: object, enable_gqa: bool) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        _check_tensor(name, tensor)
    if not isinstance(block_mask, BlockMask | type(None)):
        raise TypeError(f"block_mask is {type(block_mask).__name__}; expected a BlockMask, as create_block_mask makes")
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise ValueError(
            f"query has {query.shape[1]} heads and key has {key.shape[1]}; expected as many, or enable_gqa=True"
        )


def _check_tensor(name: str, given: Any) -> None:
    if not isinstance(given, torch.Tensor) or given.is_nested:
        what = "a nested tensor" if isinstance(given, torch.Tensor) else type(given).__name__
        raise TypeError(f"{name} is {what}; expected a dense tensor [batch, heads, length, dimension]")
    if given.ndim != 4:
        raise ValueError(f"{name} has shape {tuple(given.shape)}; expected [batch, heads, length, dimension]")


def _number(scale: Any) -> Any:
    """The scale as a number of Python's, where it is one of another kind."""
    if isinstance(scale, torch.Tensor):
        if scale.numel() != 1 or scale.device.type != "cpu" or scale.requires_grad:
            gradient = " with a gradient" if scale.requires_grad else ""
            raise TypeError(
                f"scale is a tensor {list(scale.shape)} on {scale.device}{gradient}; expected a number, or one in a "
                "tensor on the CPU: kernels take numbers, and to read another would wait for its device or lose its "
                "gradient. Multiply query by it, and pass scale=1.0"
            )
        return float(scale)
    return float(scale) if isinstance(scale, Real) and not isinstance(scale, int | float) else scale


def _mask_mod(block_mask: BlockMask, batch: int, heads: int, q_len: int, kv_len: int) -> Mod | None:
    if getattr(block_mask.mask_mod, "__name__", "") == "_sliced_mask_mod_error":
        raise ValueError(
            "block_mask is a slice of another, and slices have no mask_mod; expected one that was assigned to it: "
            "`part = whole[:, :, 3]; part.mask_mod = whole.mask_mod`, with q_idx moved on by the queries left out"
        )
    made_for = block_mask.seq_lengths
    # That of torch's own for no mask at all has no lengths of its own, and one block.
    is_one_block = min(block_mask.BLOCK_SIZE) >= 2**30
    if made_for != (q_len, kv_len) and not is_one_block:
        raise ValueError(f"block_mask is for lengths {tuple(made_for)}; expected one for {(q_len, kv_len)}")
    own = None if block_mask.mask_mod is noop_mask else block_mask.mask_mod
    if is_one_block or (own is not None and not hides_more(block_mask)):
        return own
    check_lists(block_mask, batch, heads)
    return mask_of_blocks(block_mask)


def _like(mask_mod: Mod | None, block_mask: BlockMask | None) -> Mod | None:
    """What torch.compile finds the kernels of a mask of listed blocks by; None for another mask."""
    if block_mask is None or mask_mod is None or mask_mod is block_mask.mask_mod:
        return None
    return like_mask_of_blocks(block_mask)


def _config(options: Mapping[str, Any]) -> dict[str, Any] | None:
    if not isinstance(options, Mapping):
        raise TypeError(f"kernel_options is {type(options).__name__}; expected a mapping of names to values")
    forward = {name: options.get(f"fwd_{name}", options.get(name)) for name in _CONFIG}
    if any(value is None for value in forward.values()):
        return None
    return {_CONFIG[name]: value for name, value in forward.items()}
