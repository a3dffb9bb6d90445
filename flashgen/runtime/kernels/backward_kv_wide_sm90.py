"""The kernel for Hopper that makes dK and dV of wide heads: its consumers share 64 keys, dQ is left to another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from flashgen.runtime.backward import Gradients, Incoming
from flashgen.runtime.call import Call
from flashgen.runtime.config import Config
from flashgen.runtime.descriptors import Tiling
from flashgen.runtime.kernels.kernel import Kernel, Task, key_tiles
from flashgen.runtime.kernels.sm90 import BARRIERS, CONSUMER_TILES, HOPPER, product_width
from flashgen.runtime.kernels.sm90_keys import (
    hopper_key_gradients,
    key_head_group,
    key_options,
    key_tensors,
    key_tilings,
    key_types,
    refuses_keys,
    v_block_width,
)
from flashgen.runtime.launching import relaunch
from flashgen.runtime.variant import Variant

# Narrower heads have a kernel of their own.
_BEYOND = 128


def _refuses(capability: str, dtype: str, head_dim: int, v_head_dim: int) -> str:
    widest = max(head_dim, v_head_dim)
    narrow = "" if widest > _BEYOND else f"BN is 64; expected 128 for head dimensions up to {widest}"
    return refuses_keys(capability, dtype, head_dim, v_head_dim) or narrow


def _config(stages: int) -> Config:
    return Config(64, 64, 4, stages, "hopper", fuse_dq=0, delay_dq=0)


def _default(form: str, capability: str, dtype: str, head_dim: int, v_head_dim: int) -> Config:
    return _config(2)


def _space(task: Task) -> Iterator[Config]:
    """Tiles of 64 by 64, as many stages as fit."""
    return map(_config, (2, 3) if task.kv_len >= 64 else ())


def _shared_bytes(config: Config, task: Task) -> int:
    """K and V, stages of Q and dO with lse and delta and of P in float32, barriers."""
    columns = v_block_width(task.head_dim) + v_block_width(task.v_head_dim)
    return 2 * config.BN * columns + config.num_stages * config.BM * (2 * columns + 8 + 4 * config.BN) + BARRIERS


def _constants(config: Config, head_dim: int, v_head_dim: int) -> dict[str, int | None]:
    dims = {"HEAD_DIM": product_width(max(64, head_dim)), "V_HEAD_DIM": product_width(max(64, v_head_dim))}
    return {"BM": config.BM, "BN": config.BN, **dims, "STAGES": config.num_stages}


def _types(
    dtype: torch.dtype, config: Config, head_dim: int, v_head_dim: int, grouped: bool, packed: bool
) -> dict[str, str]:  # fmt: skip
    return key_types(dtype, config.BM, config.BN, v_block_width(head_dim), v_block_width(v_head_dim), packed)


def _tilings(
    call: Call, rows: Incoming, dk: torch.Tensor, dv: torch.Tensor, config: Config
) -> dict[str, Tiling]:  # fmt: skip
    """How the kernel sees what it reads and writes by tiles."""
    width, v_width = v_block_width(call.sizes.head_dim), v_block_width(call.sizes.v_head_dim)
    return key_tilings(call, rows, dk, dv, config.BM, config.BN, width, v_width)


def _launch(
    variant: Variant, call: Call, config: Config, rows: Incoming, schedule: Mapping[str, Any], *_: Any
) -> Gradients:  # fmt: skip
    """dk and dv. Returns dq, None, and these."""
    dk, dv = hopper_key_gradients(call)
    relaunch(
        variant.kernels["backward_kv_wide_sm90"], (call.layout, call.own, rows.strides, config),
        {**key_tensors(call, rows, config), "dk_desc": dk, "dv_desc": dv, **schedule},
        lambda: BACKWARD_KV_WIDE_SM90_KERNEL.setup(
            call, config, key_tiles(call, config, call.sizes.kv_heads),
            {**rows.numbers, "head_group": key_head_group(call, config)},
            tilings=_tilings(call, rows, dk, dv, config),
        ),
    )  # fmt: skip
    return None, dk, dv


BACKWARD_KV_WIDE_SM90_KERNEL = Kernel(
    name="backward_kv_wide_sm90",
    family="backward_kv",
    backend="hopper",
    capability=HOPPER,
    function="_backward_kv_wide_sm90",
    serves=f"float16 and bfloat16 on {HOPPER}, head dimensions that are multiples of 8, above {_BEYOND}",
    refuses=_refuses,
    domain={
        "BM": (64,), "BN": (64,), **CONSUMER_TILES,
        "fuse_dq": (0,), "delay_dq": (0,), "all_heads": (None, 1),
    },
    default=_default,
    space=_space,
    host_axes=("all_heads",),
    shared_bytes=_shared_bytes,
    constants=_constants,
    types=_types,
    options=key_options,
    launch=_launch,
    packs=True,
    barriers=("_backward_kv_wide_sm90", "store_fragments", "load_fragments"),
)  # fmt: skip
