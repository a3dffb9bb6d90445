"""Gradients of a variant's eager formula, by autograd."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from flashgen.problems.calls import Call
from flashgen.verify.budget import Reference
from flashgen.verify.rounded import RoundedProducts


@dataclass(frozen=True)
class Loss:
    """The gradients of a loss that come down to a call: d_out as out, d_lse [batch, heads, q_len] float32 or None.

    `learned` names the inputs that get gradients beside q, k and v.
    """

    d_out: torch.Tensor
    d_lse: torch.Tensor | None
    learned: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return ("q", "k", "v", *self.learned)


def gradients_of(
    outputs: tuple[torch.Tensor, torch.Tensor], leaves: Mapping[str, torch.Tensor], loss: Loss, keep: bool = False
) -> dict[str, torch.Tensor]:
    """Autograd from out and lse down to each leaf."""
    out, lse = outputs
    heads: list[torch.Tensor] = [out]
    upstream = [loss.d_out.to(out.dtype)]
    # The formula's lse depends on nothing where its score does not.
    if loss.d_lse is not None and lse.requires_grad:
        heads.append(lse)
        upstream.append(loss.d_lse.to(lse.dtype))
    total: torch.Tensor = _Total.apply(upstream, *heads)
    found = torch.autograd.grad(
        total, list(leaves.values()), retain_graph=keep, allow_unused=True, materialize_grads=True
    )
    return dict(zip(leaves, found, strict=True))


class _Total(torch.autograd.Function):
    """A number that has the gradients `upstream` by `heads`, as they lie in memory.

    `torch.autograd.grad` takes such gradients too, but then imports a library for symbols, for a second or two.
    """

    @staticmethod
    def forward(ctx: Any, upstream: list[torch.Tensor], *heads: torch.Tensor) -> torch.Tensor:
        ctx.upstream = upstream
        return heads[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, *ctx.upstream


def leaves_of(call: Call, loss: Loss, dtype: torch.dtype | None = None) -> dict[str, torch.Tensor]:
    """The arguments that get gradients, with their own strides.

    q, k and v in `dtype` where it is given; then learned inputs too, if it is wider than theirs.
    """
    tensors = {"q": call.q, "k": call.k, "v": call.v}
    tensors = {name: tensor.to(dtype or tensor.dtype) for name, tensor in tensors.items()}
    for name in loss.learned:
        tensor = call.inputs[name]
        tensors[name] = tensor.to(torch.promote_types(tensor.dtype, dtype or tensor.dtype))
    return {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}


def eager_gradients(
    call: Call, loss: Loss, reference: Reference, scale: float | None, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """What eager autograd gives where q, k and v, and what comes of their products, are in `dtype`."""
    leaves = leaves_of(call, loss, dtype)
    with RoundedProducts(dtype):
        outputs = evaluate(reference, call, leaves, scale)
    return gradients_of(outputs, leaves, loss)


def evaluate(
    reference: Reference, call: Call, leaves: Mapping[str, torch.Tensor], scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of the formula on the call's arguments, those of `leaves` in the place of its own."""
    learned = {name: leaf for name, leaf in leaves.items() if name not in ("q", "k", "v")}
    keywords = {**call.keywords, **learned, "scale": scale, "return_lse": True}
    result: tuple[torch.Tensor, torch.Tensor] = reference(leaves["q"], leaves["k"], leaves["v"], **keywords)
    return result
