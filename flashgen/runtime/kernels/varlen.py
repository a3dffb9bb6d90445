"""The portable kernels over packed sequences: launched as their dense forms are, which have the tables of configs."""

from __future__ import annotations

from dataclasses import replace

from flashgen.runtime.config import Config
from flashgen.runtime.kernels.backward_kv import BACKWARD_KV_KERNEL
from flashgen.runtime.kernels.backward_q import BACKWARD_Q_KERNEL
from flashgen.runtime.kernels.forward import FORWARD_KERNEL
from flashgen.runtime.kernels.kernel import Beside, Kernel
from flashgen.runtime.kernels.learned import LEARNED_KERNEL
from flashgen.runtime.kernels.portable import PORTABLE_TILES
from flashgen.runtime.kernels.schedule import schedules


def _schedules(config: Config) -> tuple[Beside, ...]:
    """Those of packed sequences, of a variant that has them."""
    return tuple(each._replace(function=f"{each.function}_varlen") for each in schedules(config))


def _varlen(kernel: Kernel) -> Kernel:
    return replace(
        kernel,
        name=f"{kernel.name}_varlen",
        family=f"{kernel.family}_varlen",
        function=f"{kernel.function}_varlen",
        serves="all calls over packed sequences",
        tuned=False,
        beside=_schedules,
    )


def _keys_alone(form: str, capability: str, dtype: str, head_dim: int, v_head_dim: int) -> Config:
    """dQ has a kernel of its own."""
    return BACKWARD_KV_KERNEL.default(form, capability, dtype, head_dim, v_head_dim).but(fuse_dq=None)


FORWARD_VARLEN_KERNEL = _varlen(FORWARD_KERNEL)
BACKWARD_Q_VARLEN_KERNEL = _varlen(BACKWARD_Q_KERNEL)
BACKWARD_KV_VARLEN_KERNEL = replace(_varlen(BACKWARD_KV_KERNEL), domain=PORTABLE_TILES, default=_keys_alone, starts=())
LEARNED_VARLEN_KERNEL = _varlen(LEARNED_KERNEL)
