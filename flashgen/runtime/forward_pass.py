"""The forward pass of a variant: check the arguments, choose the config, launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from flashgen.runtime.call import Call, is_empty, nothing_seen, outputs
from flashgen.runtime.choosing import choose_config
from flashgen.runtime.config import Config
from flashgen.runtime.decoding import few_queries
from flashgen.runtime.kernels.kernel import Kernel
from flashgen.runtime.kernels.schedule import make_schedule
from flashgen.runtime.own_arguments import prepare_own
from flashgen.runtime.registry import kernel_of
from flashgen.runtime.schedule import check_plan, state_shape
from flashgen.runtime.variant import Variant


def attention_forward(
    variant: Variant, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, inputs: Sequence[torch.Tensor | None],
    params: Mapping[str, Any], scale: float | None, return_max: bool, config: str | None,
    counts: torch.Tensor | None = None, tiles: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """out, lse, the residue of a variant that has one, and with `return_max` the largest logit of each row.

    They are as `outputs` has them. `counts` and `tiles` are those of a plan, if there is.
    """
    call = prepare_own(variant, q, k, v, scale, inputs, params)
    decodes = config is None and counts is None and not variant.packed and params.get("dropout_p", 0) == 0
    if decodes and few_queries(call.sizes.q_len, call.sizes.kv_len) and not is_empty(call):
        return decoded(variant, call, choose_config(None, variant.configs["decode"], call), return_max)
    written = outputs(call, variant.natural, return_max)
    found = tuple(written.values())
    if is_empty(call):
        nothing_seen(written)
        return found
    tensors = _tensors(call, written)
    chosen = choose_config(config, variant.configs_of("forward", params), call)
    kernel = kernel_of("forward", chosen)
    if variant.planned:
        tensors |= query_schedule(variant, call, chosen, counts, tiles, kernel, tensors)
    kernel.launch(variant, call, chosen, tensors)
    return found


def decoded(
    variant: Variant, call: Call, config: Config, return_max: bool = False
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """`attention_forward` by the decode kernel in a config, for a call with queries and keys."""
    written = outputs(call, variant.natural, return_max)
    kernel_of("decode", config).launch(variant, call, config, _tensors(call, written))
    return tuple(written.values())


def _tensors(call: Call, written: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """What kernels read and write, by the names of their parameters."""
    return {"q_ptr": call.q, "k_ptr": call.k, "v_ptr": call.v, "max_ptr": None, **written, **call.given}


def query_schedule(
    variant: Variant, call: Call, config: Config, counts: torch.Tensor | None = None,
    tiles: torch.Tensor | None = None, walker: Kernel | None = None, tensors: Mapping[str, Any] = {},
) -> dict[str, torch.Tensor]:  # fmt: skip
    """Which tiles of keys a tile of queries needs, as kernels take it: by a plan, if there is one.

    `walker` and `tensors` are as for `make_schedule`.
    """
    if counts is None or tiles is None:
        counts, tiles = make_schedule(variant, call, config, False, walker, tensors)
    else:
        shape = state_shape(call, config, variant.by_batch, variant.by_head)
        counts, tiles = check_plan(counts, tiles, shape, call.q)
    return {"counts_ptr": counts, "tiles_ptr": tiles}
