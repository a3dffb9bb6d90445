"""A mod by generated kernels, as it is and through its YAML, beside torch's own FlexAttention run eagerly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from flex_mods import APPROXIMATE_TANH, BATCH, HEADS, LENGTH, Mod
from torch._higher_order_ops.flex_attention import math_attention
from torch.nn.attention import flex_attention as of_torch
from torch.overrides import TorchFunctionMode

from flashgen.codegen import generate, load_module
from flashgen.flex import flex_attention, to_spec
from flashgen.flex.captures import capture
from flashgen.flex.text import yaml_of
from flashgen.problems.calls import Call
from flashgen.spec import load
from flashgen.verify.budget import judge, roundoff
from flashgen.verify.eager_gradients import Loss
from flashgen.verify.gradient_budget import judge_gradients

Attend = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def wrongs(mod: Mod, folder: Path, head_dim: int, dtype: torch.dtype, device: str) -> list[str]:
    """What of a mod's results and gradients, called as it is or through its YAML, is beyond its budget."""
    generator = torch.Generator().manual_seed(7)

    def drawn() -> torch.Tensor:
        return torch.randn(BATCH, HEADS, LENGTH, head_dim, generator=generator).to(device, dtype)

    q, k, v = (drawn().requires_grad_() for _ in range(3))
    d_out = drawn()
    read = [each for each in capture(mod.score, mod.mask).values if isinstance(each, torch.Tensor)]
    captured = {f"captured {number}": tensor for number, tensor in enumerate(read) if tensor.requires_grad}
    found = []
    for way, attend in _ways(mod, folder, device).items():
        out, lse = attend(q, k, v)
        wanted = [q, k, v, *captured.values()]
        gradients = torch.autograd.grad(out, wanted, d_out, materialize_grads=True, allow_unused=True)
        verdicts = _judged(mod, (q, k, v), (out, lse), gradients[:3], d_out)
        found += [
            f"{way}: {each.detail}: {each.error:.3g}, allowed {each.budget:.3g}" for each in verdicts if not each.ok
        ]
        for (name, tensor), gradient in zip(captured.items(), gradients[3:], strict=True):
            found += [f"{way}: {wrong}" for wrong in _of_captured(mod, (q, k, v), d_out, name, tensor, gradient)]
    return found


def _ways(mod: Mod, folder: Path, device: str) -> dict[str, Attend]:
    blocks = None
    if mod.mask is not None:
        blocks = of_torch.create_block_mask(of_torch.noop_mask, BATCH, HEADS, LENGTH, LENGTH, device, BLOCK_SIZE=16)
        # Of blocks nothing else is read; torch's own refuses masks that are methods or integers.
        blocks.mask_mod = mod.mask
    spec, tensors, numbers = to_spec(mod.score, mod.mask, name="written")
    path = folder / "written.yaml"
    path.write_text(yaml_of(spec))
    module = load_module(generate(load(path), folder))

    def as_it_is(*qkv: torch.Tensor) -> Any:
        return flex_attention(*qkv, mod.score, blocks, return_lse=True)

    def as_yaml(*qkv: torch.Tensor) -> Any:
        return module.attention(*qkv, **tensors, **numbers, return_lse=True)

    return {"as it is": as_it_is, "through YAML": as_yaml}


class Plain(TorchFunctionMode):
    """Within it, functions that have no rule of their own for torch.vmap on a GPU, or that a budget does not know, are
    those that they amount to.
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is torch.nn.functional.logsigmoid:
            x = args[0]
            return x.clamp(max=0) - torch.log1p(torch.exp(-x.abs()))
        if func is APPROXIMATE_TANH:
            return torch.tanh(args[0])
        return func(*args, **kwargs or {})


# torch's own has a gradient for single elements alone.
INDEXED = patch("torch._dynamo._trace_wrapped_higher_order_op.mod_index", torch.ops.aten.index.Tensor)


def by_torch(score: Callable[..., Any] | None, mask: Callable[..., Any] | None) -> Callable[..., Any]:
    """torch's eager FlexAttention, in the dtype of what it is given, differentiable on a CPU too."""
    seen = of_torch.noop_mask if mask is None else lambda *at: mask(*at).bool()
    modified = of_torch._identity if score is None else score

    def reference(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, /, *, scale: float | None = None, return_lse: bool = False
    ) -> Any:
        whole = (q.shape[2], k.shape[2], *[None] * 10, seen)
        # What mods make themselves is made where q is.
        with torch.device(q.device), Plain(), INDEXED:
            out, lse, _ = math_attention(q, k, v, modified, whole, q.shape[3] ** -0.5 if scale is None else scale, {})
        # A row that sees nothing passes no gradient on; through a logarithm of 0 it would be no number.
        lse = torch.where(lse == -math.inf, lse.detach(), lse) * math.log(2)
        return (out, lse) if return_lse else out

    return reference


def _judged(
    mod: Mod, qkv: tuple[torch.Tensor, ...], results: tuple[torch.Tensor, torch.Tensor],
    gradients: tuple[torch.Tensor, ...], d_out: torch.Tensor,
) -> Iterator[Any]:  # fmt: skip
    call, reference = Call(*(tensor.detach() for tensor in qkv), {}), by_torch(mod.score, mod.mask)
    yield judge(*(each.detach() for each in results), call, reference)
    yield judge_gradients(dict(zip("qkv", gradients, strict=True)), call, Loss(d_out, None), reference)


def _of_captured(
    mod: Mod, qkv: tuple[torch.Tensor, ...], d_out: torch.Tensor, name: str, tensor: torch.Tensor, found: torch.Tensor
) -> Iterator[str]:
    """The gradient of a captured tensor may lose twice what torch's own loses in the kernel's dtype, and a rounding."""
    truth, own = (
        torch.autograd.grad(
            by_torch(mod.score, mod.mask)(*(each.detach().to(dtype) for each in qkv)), tensor, d_out.to(dtype)
        )[0]
        for dtype in (torch.float64, qkv[0].dtype)
    )
    error, allowed = float((found - truth).norm()), 2 * float((own - truth).norm())
    allowed += 4 * roundoff(qkv[0]) * float(truth.norm())
    if not error <= allowed:
        yield f"d_{name}: {error:.3g}, allowed {allowed:.3g}"
