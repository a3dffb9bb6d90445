"""The portable kernel that makes dK and dV, over packed sequences; dQ has a kernel of its own."""

from __future__ import annotations

from dataclasses import replace

from flashgen.runtime.config import Config
from flashgen.runtime.kernels.backward_kv import BACKWARD_KV_KERNEL
from flashgen.runtime.kernels.portable import PORTABLE_TILES
from flashgen.runtime.kernels.varlen import varlen_kernel


def _default(form: str, capability: str, dtype: str, head_dim: int, v_head_dim: int) -> Config:
    return BACKWARD_KV_KERNEL.default(form, capability, dtype, head_dim, v_head_dim).but(fuse_dq=None)


BACKWARD_KV_VARLEN_KERNEL = replace(
    varlen_kernel(BACKWARD_KV_KERNEL), domain=PORTABLE_TILES, default=_default, starts=()
)
