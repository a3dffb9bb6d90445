"""plan() of a variant: the schedules that a plan has, and the operator of torch that makes them.

Tensors that are traced, transformed or fake go through the operator. The host then does not know the configs on record
for them, so a plan that comes of it names none, and the call that it is for looks them up again.
"""

from __future__ import annotations

from typing import Any

import torch

from flashgen.runtime.arguments import sizes_of
from flashgen.runtime.call import Call, Layout
from flashgen.runtime.choosing import choose_config
from flashgen.runtime.config import Config
from flashgen.runtime.kernels.schedule import make_schedule
from flashgen.runtime.own_arguments import check_inputs, prepare_own
from flashgen.runtime.packed_sizes import packed_sizes
from flashgen.runtime.schedule import Plan, lengths_of, state_shape
from flashgen.runtime.sizes import Sizes
from flashgen.runtime.torch_operator import Operator, operator
from flashgen.runtime.variant import Variant

# That of each variant which takes plans, by its full name: torch.compile looks none up by an object.
_operators: dict[str, Operator] = {}


def register_plans(variant: Variant, name: str, common: str, *, shared: bool) -> None:
    """Register the operator `name` that makes the schedules of a variant.

    `common` are the arguments that it shares with attention: q, k, v and the variant's own. Packed sequences are a
    batch of one here.
    """
    own = len(variant.signature.names)

    def launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
        inputs, params = variant.signature.split(rest[:own])
        call = prepare_own(variant, q, k, v, None, inputs, params)
        forward, keys = plan_configs(variant, call, *rest[own:])
        made = make_schedule(variant, call, forward)
        return (*made, *(_nothing(q) if keys is None else make_schedule(variant, call, keys, turned=True)))

    def fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
        inputs, params = variant.signature.split(rest[:own])
        sizes: Sizes = sizes_of(q, k, v)
        if variant.packed:
            sizes = packed_sizes(sizes, inputs, params)
        check_inputs(variant.inputs, q, sizes, inputs, params)
        call = Call(q, k, v, Layout(1.0, sizes, (), (), copies=False))
        forward, keys = plan_configs(variant, call, *rest[own:])
        made = _room(variant, call, forward)
        return (*made, *(_nothing(q) if keys is None else _room(variant, call, keys, turned=True)))

    _operators[variant.full_name] = operator(
        name,
        f"({common}str? config, bool backward) -> (Tensor, Tensor, Tensor, Tensor)",
        launch,
        fake,
        shared=shared,
        mapped=True,
    )


def plan_configs(variant: Variant, call: Call, config: str | None, backward: bool) -> tuple[Config, Config | None]:
    """The configs whose tiles a plan is for: of the forward pass, the caller's if there is one, and of the backward."""
    chosen = choose_config(config, variant.configs["forward"], call)
    return chosen, choose_config(None, variant.configs["backward_kv"], call) if backward else None


def plan_by_operator(variant: Variant, arguments: tuple[Any, ...], config: str | None, backward: bool) -> Plan:
    """A plan by the operator. `arguments` are q, k, v and the variant's own, as it takes them."""
    given = (each.detach() if isinstance(each, torch.Tensor) else each for each in arguments)
    counts, tiles, key_counts, key_tiles = _operators[variant.full_name](*given, config, backward)
    named = None if config is None else Config.parse(config)
    made_for = variant.full_name, lengths_of(*arguments[:2], axis=-2)
    turned = Plan(key_counts, key_tiles, None, *made_for) if backward else None
    return Plan(counts, tiles, named, *made_for, turned)


def _nothing(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty(0, dtype=torch.int32), q.new_empty(0, dtype=torch.int32)


def _room(variant: Variant, call: Call, config: Config, turned: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """counts and tiles, not yet written."""
    batch, heads, *tiles = state_shape(call, config, variant.by_batch, variant.by_head)
    rows, columns = reversed(tiles) if turned else tiles
    made = ((batch, heads, rows, 3), (batch, heads, rows, columns))
    counts, listed = (call.q.new_empty(shape, dtype=torch.int32) for shape in made)
    return counts, listed
