"""Whether inputs whose shapes follow from sizes and params have an element to read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from flashgen.lang.evaluate import evaluate
from flashgen.lang.reductions import counted_sizes
from flashgen.lang.traversal import variables
from flashgen.problems.problem import Problem
from flashgen.problems.sizes import input_sizes
from flashgen.spec.variant import Dim, Input, Variant


def part_of(tensor: Input, sizes: dict[str, Any]) -> tuple[int, ...]:
    """The shape of what one sequence of several reads of an input that suits the longest: an element at least."""
    return tuple(max(1, int(evaluate(dim.size, sizes, {}))) for dim in tensor.dims)


def cut_down(tensor: Input, whole: torch.Tensor, sizes: dict[str, Any]) -> torch.Tensor:
    """An input that suits the longest sequence, as long as one of these sizes."""
    for axis, (dim, size) in enumerate(zip(tensor.dims, part_of(tensor, sizes), strict=True)):
        if variables(dim.size) & {"q_len", "kv_len"} and whole.shape[axis] > size:
            whole = whole.narrow(axis, 0, size)
    return whole


def has_elements(variant: Variant, problem: Problem, params: dict[str, bool | int | float] | None = None) -> bool:
    """Whether each input has an element to read: [kv_len // 64] of 40 keys has none."""
    return next(empty_dims(variant, problem, params), None) is None


def empty_dims(
    variant: Variant, problem: Problem, params: dict[str, bool | int | float] | None = None
) -> Iterator[tuple[Input, Dim]]:
    """The dimensions that leave an input without an element to read."""
    sizes = input_sizes(variant, problem, params=params)
    for tensor in variant.inputs:
        counted = counted_sizes(tensor.name, [dim.size for dim in tensor.dims], variant.score, variant.mask)
        for dim in tensor.dims:
            if evaluate(dim.size, sizes, {}) < 1 and dim.size not in counted:
                yield tensor, dim
