"""How long the dimensions of inputs are in a problem."""

from __future__ import annotations

from typing import Any

from flashgen.errors import UsageError
from flashgen.lang.evaluate import evaluate
from flashgen.problems.problem import Problem
from flashgen.problems.roles import Roles
from flashgen.spec.variant import Input, Variant


def input_sizes(
    variant: Variant, problem: Problem, seed: int = 0, params: dict[str, bool | int | float] | None = None
) -> dict[str, Any]:
    """Every size that a dimension may be written in: the problem's, runtime params, named dimensions.

    A named dimension is as long as the values that index it ask for (`segments`), otherwise 5 to 16 by the seed.
    """
    sizes: dict[str, Any] = {
        "batch": problem.batch, "heads": problem.heads, "kv_heads": problem.kv_heads, "q_len": problem.q_len,
        "kv_len": problem.kv_len, "head_dim": problem.head_dim, "v_head_dim": problem.v_head_dim,
    }  # fmt: skip
    sizes |= {p.name: p.value for p in variant.runtime_params} | (params or {})
    roles = Roles(variant)
    for place, name in enumerate(variant.dim_names):
        sizes[name] = roles.named_size(name, otherwise=5 + (7 * seed + 5 * place) % 12)
    return sizes


def shape_of(tensor: Input, sizes: dict[str, Any]) -> tuple[int, ...]:
    """The shape of an input under the sizes that `input_sizes` gives."""
    shape = tuple(int(evaluate(dim.size, sizes, {})) for dim in tensor.dims)
    for dim, length in zip(tensor.dims, shape, strict=True):
        if length < 0:
            raise UsageError(f"input {tensor.name}: dimension {dim.text} is {length} at {sizes}; expected 0 or more")
    return shape
