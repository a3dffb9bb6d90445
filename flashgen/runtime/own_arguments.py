"""A variant's own arguments in a call: inputs as kernels read them, checked, and what follows from their shapes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeGuard

import torch

from flashgen.runtime.arguments import check_input
from flashgen.runtime.bounded_cache import remember
from flashgen.runtime.call import Call, Layout, OwnLayout, prepare
from flashgen.runtime.declared import Input
from flashgen.runtime.packed_sizes import packed_call
from flashgen.runtime.paged import PagedLayout
from flashgen.runtime.sizes import Sizes
from flashgen.runtime.tracing import current_tracer
from flashgen.runtime.variant import Variant

# What may be 0 in a call: there is nothing to read then.
_LENGTHS = frozenset({"batch", "q_len", "kv_len", "total_q", "total_k"})

_layouts: dict[Hashable, OwnLayout] = {}


def prepare_own(
    variant: Variant, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None,
    inputs: Sequence[torch.Tensor | None], params: Mapping[str, Any],
) -> Call:  # fmt: skip
    """What `prepare` gives, with the variant's inputs and runtime params."""
    call = prepare(q, k, v, scale)
    if variant.packed:
        call = packed_call(call, inputs, params)
    if not inputs:
        return Call(call.q, call.k, call.v, call.layout, params) if params else call
    given, own = given_own(variant, variant.inputs, call.q, call.layout, inputs, params)
    return Call(call.q, call.k, call.v, call.layout, given, own)


def given_own(
    variant: Variant, declared: Sequence[Input], q: torch.Tensor, layout: Layout | PagedLayout,
    inputs: Sequence[torch.Tensor | None], params: Mapping[str, Any],
) -> tuple[Mapping[str, Any], OwnLayout]:  # fmt: skip
    """The inputs, checked, and runtime params by the names of kernels' parameters, and what follows from layouts.

    `declared` says what the inputs are in a call of this layout: the variant's inputs, or its packed ones.
    """
    sizing = [params[name] for name in variant.signature.sizing] if params else ()
    description: list[Hashable] = [variant, layout, *sizing]
    given = {**params}
    for each, tensor in zip(declared, inputs, strict=True):
        ready: Any = tensor
        if tensor is None and each.default:
            ready = each.default(layout.sizes.heads, q.device)
            if (tracer := current_tracer()) is not None:
                tracer.constant(ready)
        if ready is None and each.optional:
            description.append(None)
            given[each.pointer] = None
            continue
        try:
            description += (ready.shape, ready.stride(), ready.dtype, ready.device)
        except (AttributeError, RuntimeError):
            check_inputs(declared, q, layout.sizes, inputs, params)  # no tensor, or one without strides: it says so
            raise
        given[each.pointer] = ready
    known = tuple(description)
    own = _layouts.get(known)
    if own is None or own.copies:
        own, given = _checked(declared, q, layout.sizes, known, given, params)
    return given, own


def _checked(
    declared: Sequence[Input], q: torch.Tensor, sizes: Sizes, description: Hashable, given: Mapping[str, Any],
    params: Mapping[str, Any],
) -> tuple[OwnLayout, dict[str, Any]]:  # fmt: skip
    """The inputs as kernels read them, and what follows from their layout, which is remembered."""
    tensors = [given[each.pointer] for each in declared]
    ready, dims = check_inputs(declared, q, sizes, tensors, params)
    copies = any(one is not other for one, other in zip(ready, tensors, strict=True))
    own = _layouts.get(description)
    if own is None:
        own = OwnLayout({**_strides(declared, ready), **dims}, copies)
        remember(_layouts, description, own)
    return own, {**given, **{each.pointer: tensor for each, tensor in zip(declared, ready, strict=True)}}


# Of the declaration of an input, what is given for it, the shape that it should have, q and the sizes of the call.
InputCheck = Callable[[Input, Any, Sequence[int | None], torch.Tensor, Sizes], torch.Tensor]


def as_kernels_read(
    declared: Input, given: Any, shape: Sequence[int | None], q: torch.Tensor, sizes: Sizes
) -> torch.Tensor:  # fmt: skip
    """An input that fits, its last dimension contiguous; a dimension that comes to nothing leaves nothing to read."""
    if _has_all_dims(given, declared):
        _refuse_empty(declared, shape, q, sizes)
    free = declared.may_be_one, declared.may_be_empty
    return check_input(declared.public, given, declared.text, shape, declared.dtype, q, *free)


def check_inputs(
    declared: Sequence[Input], q: torch.Tensor, sizes: Sizes, tensors: Sequence[torch.Tensor | None],
    params: Mapping[str, Any], check: InputCheck = as_kernels_read,
) -> tuple[list[torch.Tensor | None], dict[str, int]]:  # fmt: skip
    """The inputs as they are read, what stands in for None included, and the dimensions that they bind.

    Raises ValueError or TypeError for one that does not fit the sizes of the call.
    """
    known = {**vars(sizes), **params}
    ready: list[torch.Tensor | None] = []
    bound: dict[str, int] = {}
    for each, tensor in zip(declared, tensors, strict=True):
        if tensor is None and each.optional:
            ready.append(None)
            continue
        given = each.default(sizes.heads, q.device) if tensor is None and each.default else tensor
        here = _bound(each, given)
        bound |= here
        known |= here
        shape = each.shape(*(known[name] for name in each.reads))
        ready.append(check(each, given, shape, q, sizes))
    return ready, bound


def _refuse_empty(declared: Input, shape: Sequence[int | None], q: torch.Tensor, sizes: Sizes) -> None:
    """ValueError where pairs find no element to read, by what sizes and params make of a dimension."""
    for axis, (dim, size) in enumerate(zip(declared.dims, shape, strict=True)):
        empty = size is not None and dim not in _LENGTHS and axis not in declared.may_be_empty and size < 1
        # kv_len last: of packed sequences torch.compile may not know it yet. Rows of no sequence read nothing.
        if empty and q.numel() and sizes.batch and sizes.kv_len:
            raise ValueError(
                f"{declared.public} has {dim} = {size} in its shape here, so that it has no element; expected at least "
                "1: an index outside a tensor reads the nearest element"
            )


def _bound(declared: Input, given: object) -> dict[str, int]:
    """The dimensions that an input binds; where it has too few of them, the check of its shape says so."""
    if not _has_all_dims(given, declared):
        return dict.fromkeys(declared.binds, 0)
    return {name: given.shape[axis] for name, axis in declared.binds.items()}


def _has_all_dims(given: object, declared: Input) -> TypeGuard[torch.Tensor]:
    return isinstance(given, torch.Tensor) and given.ndim == len(declared.dims)


def _strides(declared: Sequence[Input], tensors: Sequence[torch.Tensor | None]) -> dict[str, int]:
    return {
        f"stride_{each.name}_{axis}": tensor.stride(own)
        for each, tensor in zip(declared, tensors, strict=True)
        if tensor is not None
        for axis, own in enumerate(each.axes)
    }
