"""The tensors of a case's call, the same on every device, and the gradients that come down to it."""

from __future__ import annotations

import math

import torch

from flashgen.problems.calls import Call
from flashgen.verify.eager_gradients import Loss
from flashgen.verify.soak.attend import input_forms, paper_slopes
from flashgen.verify.soak.case import Case, Recipe

Tensor = torch.Tensor

# What callers have where a spec says float32, or int32: indices of torch have 64 bits.
CONVERTED = {torch.float32: torch.bfloat16, torch.int32: torch.int64, torch.bfloat16: torch.float32}
# Of bools and slopes, which no spec describes.
DENSITY, SLOPES = Recipe("either", 1, 0), Recipe("uniform", 0.0, 0.6)


def call_of(case: Case, device: str) -> Call:
    """q, k, v, every input and every runtime param. The seed of a case decides, not the device."""
    generator = torch.Generator().manual_seed(case.values)
    dtype = getattr(torch, case.dtype)
    q = torch.randn(case.batch, case.heads, case.q_len, case.head_dim, generator=generator)
    kv_batch = 1 if case.shared else case.batch
    k = torch.randn(kv_batch, case.kv_heads, case.kv_len, case.head_dim, generator=generator)
    v = torch.randn(kv_batch, case.kv_heads, case.kv_len, case.v_head_dim, generator=generator)
    inputs = {}
    for name, (shape, kind, _) in input_forms(case).items():
        recipe = case.recipes.get(name, DENSITY if kind == "bool" else SLOPES)
        values = _values(shape, recipe, kind, generator)
        values = values.to(CONVERTED.get(values.dtype, values.dtype)) if case.converted else values
        inputs[name] = _laid_out(values.to(device), recipe.layout)
    q, k, v = (
        _operand(tensor.to(dtype), layout, device)
        for tensor, layout in zip((q * case.gain, k, v), case.layouts, strict=True)
    )
    return Call(q, k, v, inputs, dict(case.params))


def elements(case: Case) -> int:
    """How many elements the largest input has."""
    return max((math.prod(shape) for shape, _, _ in input_forms(case).values()), default=0)


def loss_of(case: Case, call: Call) -> Loss:
    """Standard normal gradients of out, and of lse where the case has them."""
    generator = torch.Generator().manual_seed(case.values + 1)
    shape = (case.batch, case.heads, case.q_len, case.v_head_dim)
    device, dtype = call.q.device, call.q.dtype
    d_out = torch.randn(shape, generator=generator).to(dtype).to(device)
    if case.d_out == "expanded":
        d_out = d_out.flatten()[0].expand(shape)
    if case.d_out == "transposed":
        d_out = d_out.mT.contiguous().mT
    d_lse = torch.randn(shape[:3], generator=generator) if case.d_lse else None
    learned = tuple(name for name, (_, _, grad) in input_forms(case).items() if grad and name in call.inputs)
    return Loss(d_out, None if d_lse is None else d_lse.to(device), learned)


def with_defaults(case: Case, call: Call) -> Call:
    """The call as the oracle takes it where the module makes up what is left out."""
    if not (case.defaults and "bias" in case.spec):
        return call
    slopes = torch.tensor(paper_slopes(case.heads), dtype=torch.float32, device=call.q.device)
    return Call(call.q, call.k, call.v, {**call.inputs, "slopes": slopes}, call.params)


def _values(shape: tuple[int, ...], recipe: Recipe, kind: str, generator: torch.Generator) -> Tensor:
    dtype, low, high = getattr(torch, kind), recipe.low, recipe.high
    random = torch.rand(shape, generator=generator, dtype=torch.float64)
    match recipe.kind:
        case "either":
            found = torch.where(random < 0.8, low, high)
        case "quarters":
            found = torch.round(4 * (low + (high - low) * random)) / 4
        case "normal":
            found = low + high * torch.randn(shape, generator=generator, dtype=torch.float64)
        case "segments":
            # As many as `high - low + 1` ids, in order, changing at random places.
            last = shape[-1] if shape else 1
            found = torch.floor((random < (high - low) / max(last, 1)).double().cumsum(-1)).clamp(max=high - low) + low
        case "sorted":
            found = _within(low, high, random, dtype).sort(-1).values if shape else _within(low, high, random, dtype)
        case "outside":
            far = 10.0 ** torch.randint(1, 9, shape, generator=generator).double() * torch.sign(random - 0.17)
            found = torch.where(random < 0.34, far, _within(low, high, random, dtype))
        case _:
            found = _within(low, high, random, dtype)
    if not (dtype.is_floating_point or dtype == torch.bool):
        limits = torch.iinfo(dtype)
        found = found.clamp(max(limits.min, -(2.0**62)), min(limits.max, 2.0**62))
    return found.to(dtype)


def _within(low: float, high: float, random: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point:
        return low + (high - low) * random
    return torch.floor(low + (high - low + 1) * random)


def _laid_out(tensor: Tensor, layout: str) -> Tensor:
    """The same values elsewhere in memory; "alike" has the values of the first for all."""
    if layout == "turned" and tensor.ndim > 1:
        order = tuple(reversed(range(tensor.ndim)))
        return tensor.permute(order).contiguous().permute(order)
    if layout == "wide" and tensor.ndim:
        return torch.cat([tensor, tensor], -1)[..., : tensor.shape[-1]]
    if layout == "alike" and tensor.ndim > 1:
        return tensor[:1].expand(tensor.shape)
    return tensor


def _operand(tensor: Tensor, layout: str, device: str) -> Tensor:
    """q, k or v [batch, heads, length, dim] on a device, in this layout."""
    tensor = tensor.to(device)
    if layout == "bshd":
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "fused":
        return torch.cat([tensor] * 3, -1)[..., : tensor.shape[3]]
    if layout == "wide":
        room = tensor.new_full((*tensor.shape[:3], tensor.shape[3] + 3), math.nan)
        room[..., 1 : tensor.shape[3] + 1] = tensor
        return room[..., 1 : tensor.shape[3] + 1]
    if layout == "turned":
        return tensor.mT.contiguous().mT
    if layout == "alike":
        return tensor[:1].expand(tensor.shape)
    return tensor
