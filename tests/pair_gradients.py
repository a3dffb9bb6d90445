"""Specs with learned inputs of which each pair has an element, and the gradients of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

OF_HEADS = ("heads", "q_len", "kv_len")


def spec(score: str, *shape: str, dtype: str = "float32", others: dict[str, Any] | None = None, **more: Any) -> Any:
    bias = {"shape": [*shape], "dtype": dtype, "grad": True}
    return {"name": "mine", "align": "top_left", "score": score, "inputs": {"t": bias, **(others or {})}, **more}


ROWS = {"rows": {"value": 2, "runtime": True}}
LENS = {"lens": {"shape": ["batch"], "dtype": "int32"}}
PAD = {"pad": {"shape": ["batch", "kv_len"], "dtype": "bool"}}
OTHER = {"u": {"shape": ["heads", "kv_len", "q_len"], "dtype": "float32", "grad": True}}
SPECS = {
    "of each head of each batch element": spec("score + t[b, h, q, k]", "batch", *OF_HEADS),
    "of heads": spec("score + t[h, q, k]", *OF_HEADS),
    "of batch elements": spec("score * (1 + t[b, k, q])", "batch", "kv_len", "q_len"),
    "of all": spec("score + 2 * t[q, k]", "q_len", "kv_len"),
    "causal": spec("score + t[h, q, k]", *OF_HEADS, causal=True),
    "in a window": spec(
        "5 * tanh((score + t[b, q, k]) / 5)", "batch", "q_len", "kv_len", window={"left": 9, "right": 6}
    ),
    "of keys that some have": spec("score + t[h, q, k]", *OF_HEADS, others=LENS, mask="k < lens[b]"),
    "in a window of each": spec("score + t[q, k]", "q_len", "kv_len", others=LENS, mask="abs(q - k) < lens[b]"),
    "two of them": spec("score * (1 + t[h, q, k]) + u[h, k, q]", *OF_HEADS, others=OTHER),
    "with room for more": spec("score + t[h, q + 1, k + 2]", "heads", "q_len + 3", "kv_len + 2"),
    "of groups of the batch": spec("score + t[b // 2, h, q, k]", "(batch + 1) // 2", *OF_HEADS),
    "of groups by turns": spec("score * (1 + t[b % 2, q, k])", "2", "q_len", "kv_len"),
    "of KV heads": spec("score + t[kv_h, q, k]", "kv_heads", "q_len", "kv_len", causal=True),
    "of groups of both": spec("score + t[h % rows, q, b // rows, k]", "heads", "q_len", "batch", "kv_len", params=ROWS),
    "of keys that exist": spec("score + t[b, h, q, k]", "batch", *OF_HEADS, others=PAD, mask="pad[b, k]"),
    "causal, of keys that exist": spec("score + t[h, q, k]", *OF_HEADS, others=PAD, mask="pad[b, k]", causal=True),
    "in a window, of keys that exist": spec(
        "score + t[b // 3, q, k]", "batch", "q_len", "kv_len", others=PAD, mask="pad[b, k]", window={"left": 9}
    ),
    "read twice": spec("score + t[h, q, k] - t[h, q + q_len, k] * 0.5", "heads", "2 * q_len", "kv_len"),
}
# Such inputs beside others, which another kernel adds up.
GATE = {"s": {"shape": ["heads"], "dtype": "float32", "grad": True}}
COLUMN = {"w": {"shape": ["batch", "kv_len"], "dtype": "float32", "grad": True}}
BESIDE = {
    "a scale of heads": spec("score * s[h] + t[h, q, k]", *OF_HEADS, others=GATE),
    "a weight of keys": spec("score + t[b, h, q, k] * w[b, k]", "batch", *OF_HEADS, others=COLUMN, causal=True),
    "a read of its own": spec("score + t[h, q, k] - t[h, 0, k]", *OF_HEADS),
}


@dataclass(frozen=True)
class Made:
    """A call's tensors and its incoming gradient."""

    leaves: list[torch.Tensor]
    inputs: dict[str, torch.Tensor]
    d_out: torch.Tensor


def made(found: Any, sizes: tuple[int, ...], head_dim: int = 16, dtype: str = "float32", device: str = "cpu") -> Made:
    """A random call of batch, heads, kv_heads, q_len and kv_len."""
    names = dict(zip(("batch", "heads", "kv_heads", "q_len", "kv_len"), sizes, strict=True))
    batch, heads, kv_heads, q_len, kv_len = sizes
    generator = torch.Generator().manual_seed(sum(sizes))
    shapes = [
        (batch, heads, q_len, head_dim),
        *[(batch, kv_heads, kv_len, head_dim)] * 2,
        (batch, heads, q_len, head_dim),
    ]
    *leaves, d_out = (torch.randn(shape, generator=generator).to(device, getattr(torch, dtype)) for shape in shapes)
    inputs = {}
    for name, tensor in found["inputs"].items():
        shape = [eval(dim, {}, names) for dim in tensor["shape"]]  # noqa: S307
        if tensor["dtype"] == "bool":
            inputs[name] = (torch.rand(shape, generator=generator) < 0.7).to(device)
        elif tensor["dtype"] == "int32":
            inputs[name] = torch.randint(1, kv_len, shape, generator=generator, dtype=torch.int32).to(device)
        else:
            drawn = torch.randn(shape, generator=generator).to(device, getattr(torch, tensor["dtype"]))
            inputs[name] = drawn.requires_grad_()
    return Made(leaves, inputs, d_out)


def gradients(attend: Any, call: Made, double: bool = False, **more: Any) -> dict[str, torch.Tensor]:
    """Those of the learned inputs."""
    cast = _doubled if double else torch.Tensor.detach
    inputs, learned = _leaves(call, cast)
    out = attend(*(cast(leaf).requires_grad_() for leaf in call.leaves), **inputs, **more)
    return dict(zip(learned, torch.autograd.grad(out, [*learned.values()], cast(call.d_out)), strict=True))


def beside_rounded_out(module: Any, call: Made) -> dict[str, torch.Tensor]:
    """What the formula gives in float64 where delta = sum(d_out * out) is made of the call's own out, as it is rounded.

    d loss / d score = p * (d_out v^T - delta), and p = d lse / d score: an error of delta is a gradient of -lse.
    """
    with torch.no_grad():
        out = module.attention(*call.leaves, **call.inputs).double()
    inputs, learned = _leaves(call, _doubled)
    exact, lse = module.reference(*map(_doubled, call.leaves), **inputs, return_lse=True)
    d_out = _doubled(call.d_out)
    d_lse = (d_out * (exact - out)).sum(-1).detach()
    return dict(zip(learned, torch.autograd.grad([exact, lse], [*learned.values()], [d_out, d_lse]), strict=True))


def _doubled(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on its own, in float64 if it has floats."""
    return tensor.detach().double() if tensor.is_floating_point() else tensor


def _leaves(call: Made, cast: Callable[[torch.Tensor], torch.Tensor]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs on their own, and those of them that are learned."""
    inputs = {name: cast(tensor).requires_grad_(tensor.requires_grad) for name, tensor in call.inputs.items()}
    return inputs, {name: tensor for name, tensor in inputs.items() if tensor.requires_grad}
