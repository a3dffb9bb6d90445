"""What a generated attention() and plan() do with their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flashgen.runtime.arguments import check_scalar, check_types
from flashgen.runtime.autocast import autocast
from flashgen.runtime.choosing import backward_config_text, config_text
from flashgen.runtime.conversions import as_dtype, over_batch
from flashgen.runtime.dispatch import is_direct
from flashgen.runtime.kernels.schedule import make_schedule
from flashgen.runtime.own_arguments import prepare_own
from flashgen.runtime.planning import plan_by_operator, plan_configs
from flashgen.runtime.schedule import Plan, lengths_of, plan_parts, wants_gradients
from flashgen.runtime.torch_operator import Operator
from flashgen.runtime.variant import Variant


def attend(
    variant: Variant, operator: Operator, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    inputs: Sequence[torch.Tensor | None] = (), params: Sequence[Any] = (), *, scale: float | None, return_lse: bool,
    return_max: bool, config: Any, backward_config: Any, deterministic: bool | None, plan: Plan | None = None,
) -> torch.Tensor | tuple[torch.Tensor, ...]:  # fmt: skip
    """attention() of a variant, by its operator. `inputs` and `params` are the caller's, as the variant declares them.

    Raises ValueError or TypeError for shapes, dtypes or devices that do not fit.
    """
    check_types(q, k, v, scale, deterministic, variant.called, inputs)
    if params:
        params = variant.signature.packs(scalars_of(variant, params))
    if inputs:
        inputs = inputs_of(variant, inputs)
    q, k, v = autocast(q, k, v)
    if not variant.packed:
        k, v = over_batch(q, k, v)
    parts: tuple[Any, ...] = ()
    if variant.planned:
        lengths = lengths_of(q, k, axis=0 if variant.packed else -2)
        parts, config, backward_config = plan_parts(variant, plan, lengths, config, backward_config)
    elif plan is not None:
        own = variant.identity.variant
        raise TypeError(f"plan is {type(plan).__name__}; expected None, since {own} has no schedule")
    arguments = (
        q, k, v, *inputs, *params, scale, return_max, config_text(config, "forward", variant.packed), *parts,
        deterministic, backward_config_text(backward_config, variant.packed),
    )  # fmt: skip
    found = operator.run(arguments)
    if return_max:
        return (found[0], found[1], found[-1]) if return_lse else (found[0], found[-1])
    return (found[0], found[1]) if return_lse else found[0]


def make_plan(
    variant: Variant, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    inputs: Sequence[torch.Tensor | None] = (), params: Sequence[Any] = (), *, config: Any,
) -> Plan:  # fmt: skip
    """plan() of a variant: the schedule for these arguments, and where a gradient may be asked for, that of keys."""
    check_types(q, k, v, None, None, variant.called, inputs)
    inputs, scalars = inputs_of(variant, inputs), scalars_of(variant, params)
    q, k, v = autocast(q, k, v)
    k, v = over_batch(q, k, v)
    text = config_text(config, "forward", variant.packed)
    learned = (tensor for each, tensor in zip(variant.inputs, inputs, strict=True) if each.grad)
    backward = variant.is_scheduled("backward_kv") and wants_gradients(q, k, v, *learned)
    if torch.compiler.is_compiling() or not is_direct((q, k, v, *inputs)):
        return plan_by_operator(variant, (q, k, v, *inputs, *variant.signature.packs(scalars)), text, backward)
    call = prepare_own(variant, q, k, v, None, inputs, scalars)
    forward, keys = plan_configs(variant, call, text, backward)
    turned, made_for = None, (variant.full_name, lengths_of(q, k, axis=-2))
    if keys is not None:
        turned = Plan(*make_schedule(variant, call, keys, turned=True), keys, *made_for)
    return Plan(*make_schedule(variant, call, forward), forward, *made_for, turned)


def scalars_of(variant: Variant, params: Sequence[Any]) -> dict[str, Any]:
    """The runtime params by name."""
    declared = zip(variant.params, params, strict=True)
    return {each.name: check_scalar(each.public, value, each.type) for each, value in declared}


def inputs_of(variant: Variant, inputs: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """The inputs in their dtypes."""
    return list(map(as_dtype, inputs, variant.dtypes))
