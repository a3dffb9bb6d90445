"""A small transformer whose attention is the caller's: over a paged cache in the engine, dense where it is compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VARIANTS = Path(__file__).parents[2] / "variants"


@dataclass(frozen=True)
class Config:
    """Sizes of a model: causal attention with grouped heads.

    With a `window` its layers have sinks, and every other one sees so many keys alone, as GPT-OSS (arXiv:2508.10925,
    section 2).
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    window: int | None = None
    theta: float = 10000.0

    def spec(self, layer: int) -> Path | dict[str, Any]:
        """The attention of a layer, as flashgen.build takes it: of the gallery where that has it."""
        if self.window is None:
            return VARIANTS / "causal.yaml"
        if layer % 2:
            return VARIANTS / "sink.yaml"
        return {"name": "sink_window", "sink": "learned", "window": {"left": self.window - 1, "right": 0}}


@dataclass(frozen=True, eq=False)
class Attention:
    """What a layer's attention is: its number, its generated variant, and the inputs that this takes by name."""

    layer: int
    variant: ModuleType
    inputs: Mapping[str, Tensor]


# Of a layer's q [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim]: out, as q.
Attend = Callable[[Attention, Tensor, Tensor, Tensor], Tensor]


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [tokens, heads, head_dim] turned by its position's angles [tokens, 1, head_dim / 2] (arXiv:2104.09864)."""
    one, other = x.to(cos.dtype).chunk(2, -1)
    return torch.cat([one * cos - other * sin, other * cos + one * sin], -1).to(x.dtype)


class Block(nn.Module):
    """Grouped attention and a gated feed-forward layer, each normalised before and added after."""

    def __init__(self, config: Config, layer: int, variant: ModuleType) -> None:
        super().__init__()
        width, dim = config.width, config.head_dim
        self.heads = (config.heads, config.kv_heads, config.kv_heads)
        self.layer, self.variant = layer, variant
        self.before_attention, self.before_mlp = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, sum(self.heads) * dim, bias=False)
        self.out = nn.Linear(config.heads * dim, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(2 * width, width, bias=False)
        if config.window is not None:
            self.register_buffer("sinks", torch.randn(config.heads))

    @property
    def attention(self) -> Attention:
        return Attention(self.layer, self.variant, dict(self.named_buffers(recurse=False)))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        qkv = self.qkv(self.before_attention(x)).unflatten(-1, (sum(self.heads), -1))
        q, k, v = qkv.split(self.heads, 1)
        out = attend(self.attention, rotated(q, cos, sin), rotated(k, cos, sin), v)
        x = x + self.out(out.flatten(1))
        gate, up = self.up(self.before_mlp(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


class Model(nn.Module):
    """A decoder over packed tokens, with random weights; `variants` has the generated attention of each layer."""

    def __init__(self, config: Config, variants: Sequence[ModuleType], seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.config, self.variants = config, variants
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config, layer, variant) for layer, variant in enumerate(variants))
        self.norm, self.head = nn.RMSNorm(config.width), nn.Linear(config.width, config.vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)  # what comes out varies as what goes in

    @property
    def dtype(self) -> torch.dtype:
        return self.head.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    @property
    def attentions(self) -> list[Attention]:
        """That of each layer."""
        return [block.attention for block in self.blocks if isinstance(block, Block)]

    def converted(self, device: str | torch.device, dtype: torch.dtype) -> Model:
        """The model there and in this dtype, but for the sinks: kernels read them in float32."""
        for parameter in self.to(device).parameters():
            parameter.data = parameter.data.to(dtype)
        return self

    def in_dtype(self, dtype: torch.dtype) -> Model:
        """Another model with the same weights in this dtype."""
        other = Model(self.config, self.variants).converted(self.device, dtype)
        other.load_state_dict(self.state_dict())
        return other

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the positions [tokens], each [tokens, 1, head_dim / 2], in float32 or wider."""
        dtype = torch.promote_types(self.dtype, torch.float32)
        evens = torch.arange(0, self.config.head_dim, 2, device=positions.device, dtype=dtype)
        angles = positions[:, None, None] * torch.exp(evens * (-math.log(self.config.theta) / self.config.head_dim))
        return angles.cos(), angles.sin()

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """What `head` makes logits of, [tokens, width], from tokens and positions [tokens]."""
        x, (cos, sin) = self.embedding(tokens), self.angles(positions)
        for block in self.blocks:
            x = block(x, cos, sin, attend)
        return self.norm(x)
