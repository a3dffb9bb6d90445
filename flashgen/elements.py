"""Whether inputs whose shapes follow from sizes and params have an element to read."""

from __future__ import annotations

from typing import Any

from flashgen.lang.evaluate import evaluate
from flashgen.lang.reductions import counted_sizes
from flashgen.problems import Problem, input_sizes
from flashgen.spec.variant import Input, Variant


def part_of(tensor: Input, sizes: dict[str, Any]) -> tuple[int, ...]:
    """The shape of what one sequence of several reads of an input that suits the longest: an element at least."""
    return tuple(max(1, int(evaluate(dim.size, sizes, {}))) for dim in tensor.dims)


def has_elements(variant: Variant, problem: Problem, params: dict[str, bool | int | float] | None = None) -> bool:
    """Whether each input has an element to read: [kv_len // 64] of 40 keys has none."""
    sizes = input_sizes(variant, problem, params=params)
    for tensor in variant.inputs:
        counted = counted_sizes(tensor.name, [dim.size for dim in tensor.dims], variant.score, variant.mask)
        if any(evaluate(dim.size, sizes, {}) < 1 and dim.size not in counted for dim in tensor.dims):
            return False
    return True
