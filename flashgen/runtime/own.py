"""A variant's own arguments in a call: inputs as kernels read them, checked, and what follows from their shapes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from flashgen.runtime.arguments import Sizes, check_input
from flashgen.runtime.call import Call, OwnLayout, prepare
from flashgen.runtime.declared import Input
from flashgen.runtime.memory import remember
from flashgen.runtime.variant import Variant

_layouts: dict[Hashable, OwnLayout] = {}


def prepare_own(
    variant: Variant, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None,
    tensors: Sequence[torch.Tensor | None], params: Mapping[str, Any],
) -> Call:  # fmt: skip
    """What `prepare` gives, with the variant's inputs and runtime params."""
    call = prepare(q, k, v, scale)
    if not variant.inputs:
        return call._replace(given=params) if params else call
    given: Any = with_defaults(variant, call.q, tensors)
    sizing = [params[name] for name in variant.signature.sizing]
    try:
        description = (variant, call.layout, *sizing, *[(t.shape, t.stride(), t.dtype, t.device) for t in given])
    except (AttributeError, RuntimeError):
        check_inputs(variant, call.q, call.sizes, given, params)  # no tensor, or one without strides: it says so
        raise
    own = _layouts.get(description)
    ready = given
    if own is None or own.copies:
        ready, dims = check_inputs(variant, call.q, call.sizes, given, params)
        if own is None:
            copies = any(one is not other for one, other in zip(ready, given, strict=True))
            own = OwnLayout({**_strides(variant, ready), **dims}, copies)
            remember(_layouts, description, own)
    pointers = dict(zip(variant.pointers, ready, strict=True))
    return Call(call.q, call.k, call.v, call.layout, {**pointers, **params}, own)


def with_defaults(
    variant: Variant, q: torch.Tensor, tensors: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:  # fmt: skip
    """The inputs with what stands in for those that are None."""
    return [
        each.default(q.shape[1], q.device) if given is None and each.default is not None else given
        for each, given in zip(variant.inputs, tensors, strict=True)
    ]


def check_inputs(
    variant: Variant, q: torch.Tensor, sizes: Sizes, tensors: Sequence[torch.Tensor | None], params: Mapping[str, Any]
) -> tuple[list[torch.Tensor], dict[str, int]]:
    """The inputs as kernels read them, and the dimensions that they bind.

    Raises ValueError or TypeError for one that does not fit the sizes of the call.
    """
    known = {**vars(sizes), **params}
    ready: list[torch.Tensor] = []
    bound: dict[str, int] = {}
    for each, given in zip(variant.inputs, tensors, strict=True):
        here = _bound(each, given)
        bound |= here
        known |= here
        shape = each.shape(*(known[name] for name in each.reads))
        text = f"[{', '.join(each.dims)}]"
        ready.append(check_input(each.public, given, text, shape, each.dtype, q, each.may_be_one))
    return ready, bound


def _bound(declared: Input, given: object) -> dict[str, int]:
    """The dimensions that an input binds; where it has too few of them, the check of its shape says so."""
    if not isinstance(given, torch.Tensor):
        return dict.fromkeys(declared.binds, 0)
    return {name: given.shape[axis] if axis < given.ndim else 0 for name, axis in declared.binds.items()}


def _strides(variant: Variant, tensors: Sequence[torch.Tensor]) -> dict[str, int]:
    return {
        f"stride_{each.name}_{axis}": stride
        for each, tensor in zip(variant.inputs, tensors, strict=True)
        for axis, stride in enumerate(tensor.stride())
    }
