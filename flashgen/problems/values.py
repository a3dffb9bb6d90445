"""Random values of an input, by what they are used for."""

from __future__ import annotations

from typing import Any

import torch

from flashgen.problems.capacity import refuse_too_large
from flashgen.problems.draws import LEAST, POSITIVE, SWITCH
from flashgen.problems.roles import Roles
from flashgen.problems.sizes import shape_of
from flashgen.spec.variant import Input, Sample


def sample(tensor: Input, roles: Roles, sizes: dict[str, Any], generator: torch.Generator, kind: str) -> torch.Tensor:
    """Random values of an input, by what its values are used for; `kind` as `drawn_as` has it."""
    shape = shape_of(tensor, sizes)
    refuse_too_large(tensor.name, [dim.text for dim in tensor.dims], shape, generator.device)
    hint = roles.samples.get(tensor.name, Sample())
    dtype = getattr(torch, tensor.dtype)
    if dtype == torch.bool:
        return _uniform(shape, generator) < (0.5 if hint.density is None else hint.density)
    if kind == SWITCH:
        return (_uniform(shape, generator) < 0.5).to(dtype)
    if dtype.is_floating_point:
        return _floats(tensor, shape, kind, generator).to(dtype)
    if hint.density is not None:
        return (_uniform(shape, generator) < hint.density).to(dtype)
    low, high = roles.int_range(tensor, sizes, hint)
    high = min(high, torch.iinfo(dtype).max)
    ascending = roles.ascending_axis(tensor)
    if ascending is None or tensor.range is not None:
        return _integers(low, high, shape, generator).to(dtype)
    if roles.is_position(tensor.name) and hint.segments is None:
        return _integers(low, high, shape, generator).sort(dim=ascending).values.to(dtype)
    return (low + _segments(shape, ascending, high - low + 1, generator)).to(dtype)


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=generator, device=generator.device)


def _integers(low: int, high: int, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    # What is drawn is below the end, which 64 bits must hold.
    end = min(max(high, low) + 1, 2**63 - 1)
    return torch.randint(min(low, end - 1), end, shape, generator=generator, device=generator.device)


def _floats(tensor: Input, shape: tuple[int, ...], kind: str, generator: torch.Generator) -> torch.Tensor:
    if tensor.range is not None:
        low, high = tensor.range
        share = _uniform(shape, generator)
        # Their difference may be beyond float32.
        return (low * (1 - share) + high * share).clamp(low, high)
    if tensor.default == "alibi_slopes":
        heads = torch.arange(1, shape[0] + 1, device=generator.device)
        return torch.exp2(-8.0 * heads / shape[0]) * (0.5 + _uniform(shape, generator))
    values = 0.5 * torch.randn(shape, generator=generator, device=generator.device)
    return LEAST + values.abs() if kind == POSITIVE else values


def _segments(shape: tuple[int, ...], axis: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Ids 0 to count - 1 that ascend along an axis, changing at random places."""
    length = shape[axis]
    rows = shape[:axis] + shape[axis + 1 :]
    cuts = _integers(0, max(length - 1, 0), (*rows, count - 1), generator).sort(dim=-1).values
    places = torch.arange(length, device=generator.device).expand(*rows, length).contiguous()
    return torch.searchsorted(cuts.contiguous(), places, right=True).movedim(-1, axis)
