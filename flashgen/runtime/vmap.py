"""torch.func.vmap over an operator: what is mapped becomes part of the batch, and one call serves all elements.

Where it cannot (an input without a batch is mapped, a gradient would be summed over what was mapped, sequences are
packed, a schedule is given) the elements are called for one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flashgen.runtime.declared import Input
from flashgen.runtime.variant import Variant

_Call = Callable[..., Any]


@dataclass(frozen=True)
class BatchAxes:
    """Which axis of each argument and result of an operator is the batch, None for one that has none.

    The first argument has one.
    """

    arguments: tuple[int | None, ...]
    results: tuple[int | None, ...]


# Those of a call with these arguments; None where its batch elements are not each for itself.
AxesOf = Callable[[Sequence[Any]], BatchAxes | None]


def input_axis(declared: Input) -> int | None:
    """Which axis of an input is the batch, of one element too where it may be."""
    return next((axis for axis, dim in enumerate(declared.dims) if dim in ("batch", "batch|1")), None)


def own_axes(variant: Variant) -> tuple[int | None, ...]:
    """The axes of q, k, v and a variant's own arguments."""
    signature = variant.signature
    params = len(signature.names) - signature.tensors
    return (0, 0, 0, *map(input_axis, variant.inputs), *[None] * params)


def vmap_rule(run: _Call, axes_of: AxesOf) -> _Call:
    """How torch.func.vmap maps an operator with several results, called by `run`."""

    def rule(info: Any, in_dims: Sequence[Any], *arguments: Any) -> tuple[Any, Any]:
        # A list of numbers among the arguments has a list of None.
        dims = [dim if isinstance(dim, int) else None for dim in in_dims]
        axes = axes_of(arguments)
        if axes is None or any(
            dim is not None and axis is None for dim, axis in zip(dims, axes.arguments, strict=True)
        ):
            return each_alone(run, info.batch_size, dims, arguments)
        return _folded(run, axes, info.batch_size, dims, arguments)

    return rule


def _folded(
    run: _Call, axes: BatchAxes, count: int, dims: Sequence[int | None], arguments: Sequence[Any]
) -> tuple[Any, Any]:
    first = arguments[0].shape if dims[0] is None else arguments[0].movedim(dims[0], 0).shape[1:]
    batch = first[0]
    found = run(
        *(
            _into_batch(value, dim, axis, count, batch)
            if axis is not None and isinstance(value, torch.Tensor)
            else value
            for value, dim, axis in zip(arguments, dims, axes.arguments, strict=True)
        )
    )
    results = [
        tensor if axis is None else tensor.unflatten(axis, (count, batch))
        for tensor, axis in zip(found, axes.results, strict=True)
    ]
    return tuple(results), axes.results


def _into_batch(tensor: torch.Tensor, dim: int | None, axis: int, count: int, batch: int) -> torch.Tensor:
    """A tensor with `count` times `batch` elements along its axis; one that has one for all is not copied."""
    sizes = [-1] * tensor.ndim
    if dim is None:
        if tensor.shape[axis] == 1:
            sizes[axis] = count * batch
            return tensor.expand(sizes)
        sizes.insert(axis, count)
        return tensor.unsqueeze(axis).expand(sizes).flatten(axis, axis + 1)
    tensor = tensor.movedim(dim, axis)
    sizes[axis + 1] = batch
    return tensor.expand(sizes).flatten(axis, axis + 1)


def each_alone(run: _Call, count: int, dims: Sequence[int | None], arguments: Sequence[Any]) -> tuple[Any, Any]:
    """The results of an operator called for one element after another, stacked, and where they are so."""
    found = [
        run(*(value if dim is None else value.select(dim, number) for value, dim in zip(arguments, dims, strict=True)))
        for number in range(count)
    ]
    results = tuple(torch.stack(each) for each in zip(*found, strict=True))
    return results, (0,) * len(results)
