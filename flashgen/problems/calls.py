"""The arguments of one dense call, drawn for a problem."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch

from flashgen.errors import UsageError
from flashgen.problems.draws import drawn_as
from flashgen.problems.problem import Problem
from flashgen.problems.roles import Roles
from flashgen.problems.sizes import input_sizes
from flashgen.problems.values import sample
from flashgen.spec.variant import Variant

LAYOUTS = ("bhsd", "bshd")


@dataclass(frozen=True)
class Own:
    """What a variant takes beside q, k and v: input tensors and runtime params, by name."""

    inputs: dict[str, torch.Tensor]
    params: dict[str, bool | int | float]

    @property
    def keywords(self) -> dict[str, Any]:
        return {**self.inputs, **self.params}


@dataclass(frozen=True)
class Call:
    """The arguments of one call of attention(): q, k, v, and by name the input tensors and runtime params."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    params: dict[str, bool | int | float] = field(default_factory=dict)

    @property
    def keywords(self) -> dict[str, Any]:
        """What follows q, k, v."""
        return {**self.inputs, **self.params}


def make_inputs(
    variant: Variant, problem: Problem, device: str | torch.device = "cpu", seed: int = 0, layout: str = "bhsd",
    params: dict[str, bool | int | float] | None = None, apart: Collection[str] = (),
) -> Call:  # fmt: skip
    """Draw the arguments of one call; the same seed on the same device gives the same values.

    q, k and v are standard normal, so that scores are too. With layout "bshd" they are views
    [batch, heads, length, dim] of storage laid out [batch, length, heads, dim]. `params` replaces values of
    runtime params. Inputs are drawn from the range that the spec gives them, else by what the expressions use them for
    and the spec's samples: floats are normal with deviation 0.5 (slopes fall about geometrically over the heads), or
    positive where the formula asks for it; bools are true by half; ints that index a dimension stay in its range, ints
    compared with a position lie in [0, kv_len], others in [0, 8). Ints laid out along positions, or along a named
    dimension, ascend: packed documents, offsets. Inputs that are named in `apart` are left to the caller.
    """
    if layout not in LAYOUTS:
        raise UsageError(f"layout is {layout!r}; expected one of {', '.join(LAYOUTS)}")
    generator = torch.Generator(device).manual_seed(seed)
    dtype = getattr(torch, problem.dtype)

    def normal(heads: int, length: int, dim: int) -> torch.Tensor:
        shape = (problem.batch, heads, length, dim) if layout == "bhsd" else (problem.batch, length, heads, dim)
        values = torch.randn(shape, generator=generator, device=device).to(dtype)
        return values if layout == "bhsd" else values.transpose(1, 2)

    q = normal(problem.heads, problem.q_len, problem.head_dim)
    k = normal(problem.kv_heads, problem.kv_len, problem.head_dim)
    v = normal(problem.kv_heads, problem.kv_len, problem.v_head_dim)
    own = draw_own(variant, problem, generator, seed, params, apart)
    return Call(q, k, v, own.inputs, own.params)


def draw_own(
    variant: Variant, problem: Problem, generator: torch.Generator, seed: int = 0,
    params: dict[str, bool | int | float] | None = None, apart: Collection[str] = (),
) -> Own:  # fmt: skip
    """The inputs and params alone, as `make_inputs` draws them; not those that are `apart`."""
    values = {p.name: p.value for p in variant.runtime_params} | (params or {})
    sizes = input_sizes(variant, problem, seed, values)
    roles = Roles(variant)
    kinds = drawn_as(variant)
    drawn = [i for i in variant.inputs if i.name not in apart]
    inputs = {i.name: sample(i, roles, sizes, generator, kinds.get(i.name, "")) for i in drawn}
    return Own(inputs, values)


def drawn(call: Call) -> str:
    """What the inputs of a call are, in words: each with its least and its greatest value."""
    spans = ((name, tensor.min().item(), tensor.max().item()) for name, tensor in call.inputs.items() if tensor.numel())
    return ", ".join(f"{name} from {low:g} to {high:g}" for name, low, high in spans)
