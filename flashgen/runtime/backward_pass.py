"""The backward pass of a variant: which kernels make its gradients, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from flashgen.runtime.backward import (
    Gradients,
    Incoming,
    for_scale,
    is_deterministic,
    no_gradient,
    no_gradients,
    sink_gradient,
)
from flashgen.runtime.call import Call, is_empty
from flashgen.runtime.choosing import backward_configs
from flashgen.runtime.config import Config
from flashgen.runtime.forward_pass import query_schedule
from flashgen.runtime.input_gradients import (
    InputSums,
    adds_inputs,
    are_by_pair,
    input_gradients,
    pair_sums,
    sums_of_inputs,
)
from flashgen.runtime.kernels.delta import launch_delta
from flashgen.runtime.kernels.schedule import make_schedule
from flashgen.runtime.own_arguments import prepare_own
from flashgen.runtime.registry import kernel_of
from flashgen.runtime.schedule import key_plan
from flashgen.runtime.variant import Variant

# The counts and tiles that a plan has for the backward pass, if there are any.
KeyPlan = tuple[torch.Tensor | None, torch.Tensor | None]


def attention_backward(
    variant: Variant, d_out: torch.Tensor, d_lse: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor,
    v: torch.Tensor, inputs: Sequence[torch.Tensor | None], params: Mapping[str, Any],
    output: tuple[torch.Tensor, ...], scale: float | None, config: str | None, deterministic: bool | None,
    plan: KeyPlan, needs: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    """The gradients of q, k, v and the learned inputs; None for one that `needs` does not ask for.

    `output` is what the forward pass gave; `plan` has the counts and tiles for the tiles of the backward pass.
    """
    call = prepare_own(variant, q, k, v, scale, inputs, params)
    if is_empty(call):
        return no_gradients(call, (call.given[f"{name}_ptr"] for name in variant.learned))
    needs_q, needs_k, needs_v = needs[:3]
    exact = is_deterministic(deterministic)
    fuse_dq = needs_q and (needs_k or needs_v) and not exact
    by_kv, by_q = (variant.configs_of(family, params) for family in ("backward_kv", "backward_q"))
    kv_config, q_config = backward_configs(config, by_kv, by_q, call, fuse_dq)
    dq_sums = kernel_of("backward_kv", kv_config).query_sums(call, kv_config)
    rows = launch_delta(variant, call, kv_config, output, d_out, d_lse, dq_sums)
    asked = {name for name, needed in zip(variant.learned, needs[3:], strict=True) if needed} if variant.learned else ()
    summed = bool(asked and asked & variant.summed)
    by_pair = summed and are_by_pair(variant, call)
    sums = sums_of_inputs(variant, call, exact, by_pair) if summed else None
    dq = dk = dv = None
    if needs_k or needs_v:
        dq, dk, dv = key_gradients_of(variant, call, kv_config, rows, dq_sums, sums, plan)
    if q_config is not None and needs_q and dq is None:
        dq = query_gradient_of(variant, call, q_config, rows)
    dq = for_scale(dq, scale)
    if not asked:
        return dq, dk, dv, *(None for _ in variant.learned)
    by_keys = kv_config if needs_k or needs_v else None
    of_pairs = pair_sums(variant, call, rows) if by_pair else {}
    learned = input_gradients(variant, call, rows, sums, by_keys, of_pairs) if summed else {}
    if variant.sink in asked:
        learned[variant.sink] = sink_gradient(call.given[f"{variant.sink}_ptr"], rows, variant.natural)
    for name in asked - learned.keys():  # no score depends on it
        learned[name] = no_gradient(call.given[f"{name}_ptr"])
    return dq, dk, dv, *(learned.get(name) for name in variant.learned)


def key_gradients_of(
    variant: Variant, call: Call, config: Config, rows: Incoming, dq_sums: torch.Tensor | None = None,
    sums: InputSums | None = None, plan: KeyPlan = (None, None),
) -> Gradients:  # fmt: skip
    """dq, dk and dv; None for a dq that is left to another kernel."""
    schedule = {}
    if variant.is_scheduled("backward_kv"):
        made = key_plan(*plan, call, config, variant.by_batch, variant.by_head)
        counts, tiles = made or make_schedule(variant, call, config, turned=True)
        schedule = {"counts_ptr": counts, "tiles_ptr": tiles}
    tensors = sums.tensors if sums is not None and adds_inputs(variant, config) else None
    found: Gradients = kernel_of("backward_kv", config).launch(variant, call, config, rows, schedule, dq_sums, tensors)
    return found


def query_gradient_of(variant: Variant, call: Call, config: Config, rows: Incoming) -> torch.Tensor:
    """dq."""
    schedule = query_schedule(variant, call, config) if variant.is_scheduled("backward_q") else {}
    found: torch.Tensor = kernel_of("backward_q", config).launch(variant, call, config, rows, schedule)
    return found
