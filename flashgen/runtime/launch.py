"""What every launch of a generated kernel needs: prepared tensors, outputs, the config, and the device made current."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton

from flashgen.runtime.arguments import Sizes, kernel_ready, sizes_of
from flashgen.runtime.config import Config
from flashgen.runtime.interpreter import interpreted
from flashgen.runtime.lookup import Lookup

FLOAT32 = torch.finfo(torch.float32)


@dataclass(frozen=True)
class Call:
    """One call of attention(), checked: tensors as a kernel reads them, and scale > 0."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float
    sizes: Sizes

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of batch, heads and length of q, k and v, in elements."""
        return (*self.q.stride()[:3], *self.k.stride()[:3], *self.v.stride()[:3])

    @property
    def lengths(self) -> tuple[int, ...]:
        """heads, kv_heads, q_len, kv_len, head_dim, v_head_dim, as kernels take them."""
        s = self.sizes
        return s.heads, s.kv_heads, s.q_len, s.kv_len, s.head_dim, s.v_head_dim

    def blocks(self, config: Config) -> dict[str, int]:
        """The tile sizes that a kernel is compiled for."""
        padded = {"HEAD_DIM": self.sizes.head_dim, "V_HEAD_DIM": self.sizes.v_head_dim}
        tiles = {name: max(16, triton.next_power_of_2(size)) for name, size in padded.items()}
        return {"BM": config.BM, "BN": config.BN, **tiles}


def prepare(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None) -> Call:
    """Check the tensors of a call and bring them into a form that a kernel reads."""
    sizes = sizes_of(q, k, v)
    if q.device.type != "cuda" and not interpreted():
        raise ValueError(
            f"q is on {q.device}; expected a CUDA device (TRITON_INTERPRET=1, set before Python starts, runs it on "
            "the CPU)"
        )
    if scale is None:
        scale = 1 / math.sqrt(sizes.head_dim)
    if not abs(scale) <= FLOAT32.max:
        raise ValueError(f"scale is {scale!r}; expected a finite number")
    # The kernels mask scores and take their maximum before they multiply by scale, which needs it to be positive.
    if abs(scale) < FLOAT32.tiny:
        q, scale = torch.zeros_like(q), 1.0
    elif scale < 0:
        q, scale = -q, -scale
    return Call(kernel_ready("q", q), kernel_ready("k", k), kernel_ready("v", v), float(scale), sizes)


def outputs(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """out [batch, heads, q_len, v_head_dim] in q's dtype and lse [batch, heads, q_len] in float32, not yet written."""
    s = call.sizes
    out = torch.empty((s.batch, s.heads, s.q_len, s.v_head_dim), dtype=call.q.dtype, device=call.q.device)
    return out, torch.empty((s.batch, s.heads, s.q_len), dtype=torch.float32, device=call.q.device)


def fake_outputs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs of the right shape for tracing."""
    return q.new_empty((*q.shape[:3], v.shape[3])), q.new_empty(q.shape[:3], dtype=torch.float32)


def is_empty(call: Call) -> bool:
    """Whether there is nothing to launch: no rows, or no keys."""
    return not (call.sizes.batch and call.sizes.heads and call.sizes.q_len and call.sizes.kv_len)


def nothing_seen(out: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs of rows that see no key."""
    return out.zero_(), lse.fill_(-math.inf)


def config_text(config: Config | Mapping[str, Any] | str | None) -> str | None:
    """A config as the operator takes it."""
    return None if config is None else str(Config.of(config))


def choose_config(text: str | None, configs: Lookup, call: Call) -> Config:
    """The config that the caller names, else the one that is on record for this GPU and these sizes."""
    if text is not None:
        return Config.parse(text).for_kernel(configs.kernel)
    s, q = call.sizes, call.q
    if q.device.type != "cuda":
        return configs.default("", str(q.dtype).removeprefix("torch."), s.head_dim, s.v_head_dim)
    heads = s.batch * s.heads
    return configs(
        q.device.index, q.dtype, s.head_dim, s.v_head_dim, heads, s.heads // s.kv_heads, s.q_len, s.kv_len
    ).config


def options(config: Config) -> dict[str, Any]:
    """Launch options. Fused multiply-adds are asked for by name: Triton's default for them is about to change."""
    return {"num_warps": config.num_warps, "num_stages": config.num_stages, "enable_fp_fusion": True}


def on_device(tensor: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Make a tensor's GPU current for a launch, with somewhere to put the descriptors that TMA reads."""
    if tensor.device.type != "cuda":
        return contextlib.nullcontext()
    triton.set_allocator(_scratch)
    return torch.cuda.device(tensor.device)


def _scratch(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    return torch.empty(size, dtype=torch.int8, device="cuda")
