"""The gradients of learned inputs: sums over all pairs that read an element, and who adds them up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from flashgen.runtime.backward import Incoming
from flashgen.runtime.call import Call
from flashgen.runtime.choosing import inputs_config, pairs_config, rest_config
from flashgen.runtime.config import Config
from flashgen.runtime.declared import Sums, names_of
from flashgen.runtime.exact_sums import input_gradient, input_sums
from flashgen.runtime.forward_pass import query_schedule
from flashgen.runtime.kernels.backward_pairs import BACKWARD_PAIRS_KERNEL, Groups, Shares, shares_of
from flashgen.runtime.kernels.learned import LEARNED_KERNEL, InputSums
from flashgen.runtime.registry import kernel_of
from flashgen.runtime.variant import Variant

_FLOAT32 = 4
_NONE: Mapping[str, torch.Tensor] = {}


def sums_of_inputs(variant: Variant, call: Call, exact: bool, by_pair: bool = False) -> InputSums | None:
    """Room for them; with `exact` they come out the same on every run. None where the kernel `by_pair` makes all, and
    none for those that it makes."""
    sizes = _sizes(call)
    tensors: dict[str, torch.Tensor | None] = {}
    ways: dict[str, bool] = {}
    at_once = call.sizes.batch * call.sizes.heads
    for each in variant.sums:
        left_out = by_pair and each.apart is not None
        way = not left_out and not call.sizes.packed and _is_apart(each, sizes) and (exact or not each.turns)
        ways |= {f"{each.name.upper()}_APART": way, f"{each.name.upper()}_IN_TURNS": way}
        if way and each.turns:
            at_once = min(at_once, 1 if each.turns == "heads" else call.sizes.heads)
        room = None if left_out else input_sums(call.given[f"{each.input}_ptr"], exact and not way)
        tensors[f"{each.name}_ptr"] = room
    if all(room is None for room in tensors.values()):
        return None
    return InputSums(tensors, ways, at_once, _strides(variant, call))


def are_by_pair(variant: Variant, call: Call) -> bool:
    """Whether `pair_sums` adds up what each pair of the call has elements of its own for."""
    if variant.owners is None or call.sizes.packed:
        return False
    sizes = _sizes(call)
    return all(_is_apart(each, sizes) for each in _owned(variant))


def pair_sums(variant: Variant, call: Call, rows: Incoming) -> dict[str, torch.Tensor]:
    """The sums of the places where each pair has an element, by the names of kernels' parameters: the same on every
    run."""
    owned, places = _owned(variant), Counter(each.input for each in variant.sums)
    sizes = _sizes(call)
    owners = {owner.axis: owner for owner in variant.owners or ()}
    counts = {"b": call.sizes.batch, "h": call.sizes.heads}
    groups = {axis: Groups.of(count, owners.get(axis), sizes) for axis, count in counts.items()}
    elements = sum(call.given[f"{each.input}_ptr"].numel() for each in owned)
    alone = all(places[each.input] == 1 for each in owned)
    config, shared_out = _by_pair(variant, call, groups, elements, alone)
    sums = {
        each.name: _room(call.given[f"{each.input}_ptr"], shared_out.splits, whole=places[each.input] == 1)
        for each in owned
    }
    BACKWARD_PAIRS_KERNEL.launch(variant, call, config, rows, sums, _strides(variant, call), groups, shared_out)
    return {f"{name}_ptr": each[0] if shared_out.splits == 1 else each.sum(0) for name, each in sums.items()}


def _owned(variant: Variant) -> list[Sums]:
    """The places where each pair may have an element of its own."""
    return [each for each in variant.sums if each.apart is not None]


def _by_pair(
    variant: Variant, call: Call, groups: Mapping[str, Groups], elements: int, alone: bool
) -> tuple[Config, Shares]:
    """In which tiles, and by how many programs, for so many elements. Sums in float32, of splits or of places that are
    not `alone`, take the room of what is read so."""
    read = variant.loads * max(each.dtype.itemsize for each in variant.inputs)
    config = pairs_config(call, read if alone else max(read, _FLOAT32))
    found = shares_of(call, config, groups, elements)
    if found.splits == 1:
        return config, found
    config = pairs_config(call, max(read, _FLOAT32))
    return config, shares_of(call, config, groups, elements)


def _room(tensor: torch.Tensor, splits: int, whole: bool) -> torch.Tensor:
    """Zeros for the elements of each split: in float32, or in the tensor's dtype where they are its whole gradient."""
    dtype = tensor.dtype if whole and splits == 1 else torch.float32
    return torch.zeros((splits, *tensor.shape), dtype=dtype, device=tensor.device)


def _sizes(call: Call) -> dict[str, Any]:
    """What the spec may size an input by: its params and named dimensions too."""
    return {**call.given, **call.own.numbers, **vars(call.sizes)}


def _strides(variant: Variant, call: Call) -> dict[str, int]:
    """Of the sums for each learned input, which are contiguous, on the axes of the input as a dense call has it."""
    strides: dict[str, int] = {}
    for each in variant.inputs:
        if each.name in variant.summed:
            shape = call.given[each.pointer].shape
            whole = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
            strides |= {f"stride_{each.name}_{axis}_sums": whole[own] for axis, own in enumerate(each.axes)}
    return strides


def _is_apart(place: Sums, sizes: Mapping[str, Any]) -> bool:
    return place.apart is not None and bool(place.apart(*(sizes[name] for name in names_of(place.apart))))


def input_gradients(
    variant: Variant, call: Call, rows: Incoming, sums: InputSums | None, keys: Config | None,
    of_pairs: Mapping[str, torch.Tensor] = _NONE,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """The gradients by the names of the inputs, from sums and those `of_pairs`. `keys` is the config in which the
    kernel for dK and dV ran, if it did.

    Where that has a part in the sums, this is what it left: nothing, or tiles whose pairs share one element.
    """
    if sums is None:
        return _by_input(variant, call, of_pairs)
    added = keys is not None and adds_inputs(variant, keys)
    leaves = variant.takes("learned", "SKIP_UNIFORM")
    if not added or leaves:
        scheduled = variant.is_scheduled("learned")
        config = inputs_config(call, scheduled, variant.loads)
        if keys is not None and added:
            config = rest_config(call, keys, variant.loads)
        schedule = query_schedule(variant, call, config) if scheduled else {}
        LEARNED_KERNEL.launch(variant, call, config, rows, schedule, sums, added)
    return _by_input(variant, call, {**sums.tensors, **of_pairs})


def _by_input(variant: Variant, call: Call, sums: Mapping[str, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    """The gradients by the names of the inputs, from the sums of all places where each is read."""
    found: dict[str, list[torch.Tensor]] = {}
    for each in variant.sums:
        part = sums[f"{each.name}_ptr"]
        assert part is not None
        found.setdefault(each.input, []).append(part)
    return {name: input_gradient(call.given[f"{name}_ptr"], *parts) for name, parts in found.items()}


def adds_inputs(variant: Variant, keys: Config) -> bool:
    """Whether the kernel for dK and dV has a part in them in this config: not of packed sequences."""
    kernel = kernel_of("backward_kv", keys)
    return kernel.sums_inputs and not variant.packed and variant.takes(kernel.name, "LEARNED")
