"""The portable kernel that makes dK and dV, and where a config fuses it dQ, by atomics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import torch

from flashgen.runtime.backward import Gradients, Incoming, from_sums, key_gradients, query_sums, sum_of_groups
from flashgen.runtime.call import Call
from flashgen.runtime.config import Config
from flashgen.runtime.kernels.kernel import Kernel, Task, key_tiles
from flashgen.runtime.kernels.portable import (
    PORTABLE_TILES,
    Table,
    backward_tensors,
    default_from,
    gradient_pairs,
    gradient_rows,
    portable_constants,
    portable_options,
    row_numbers,
    streamed_bytes,
    tile_shapes,
)
from flashgen.runtime.launching import relaunch
from flashgen.runtime.variant import Variant
from flashgen.runtime.widths import padded

# At head_dim 128 the fastest on sm90 spills half a kilobyte a thread, outside its loop.
_DEFAULTS: Table = {
    "sm80": (Config(32, 64, 4, 2), Config(64, 64, 8, 2), Config(32, 64, 8, 1), Config(16, 32, 8, 1)),
    "sm90": (Config(64, 64, 4, 3, fuse_dq=1), Config(64, 64, 4, 1), Config(32, 32, 8, 2), Config(32, 32, 8, 1)),
    "sm100": (Config(64, 64, 4, 3, fuse_dq=1), Config(64, 64, 4, 1), Config(32, 32, 8, 2), Config(32, 32, 8, 1)),
    "small": (Config(32, 64, 4, 2), Config(32, 64, 8, 2), Config(32, 32, 8, 1), Config(16, 16, 4, 1)),
    "other": (Config(32, 64, 4, 1), Config(32, 64, 8, 1), Config(16, 32, 8, 1), Config(16, 16, 4, 1)),
    "float32": (Config(32, 32, 8, 1), Config(16, 32, 8, 1), Config(16, 16, 8, 1), Config(16, 8, 4, 1)),
    "float32 by TMA": (Config(16, 32, 8, 1), Config(16, 16, 8, 1), Config(16, 16, 16, 1), Config(16, 8, 4, 1)),
}
_chosen = default_from(_DEFAULTS)


def _default(form: str, capability: str, dtype: str, head_dim: int, v_head_dim: int) -> Config:
    """dQ is left to the other kernel unless the table says otherwise."""
    config = _chosen(form, capability, dtype, head_dim, v_head_dim)
    return config if config.axes else config.but(fuse_dq=0)


def _space(task: Task) -> Iterator[Config]:
    return (Config(*shape, fuse_dq=fuse) for shape, fuse in product(tile_shapes(task, (1, 2, 3)), (0, 1)))


def _shared_bytes(config: Config, task: Task) -> int:
    """Q and dO are streamed."""
    return streamed_bytes(config.BM, config, task)


def _accumulators(config: Config, task: Task) -> int:
    """Rows, dK and dV, beside pairs and then, where the config fuses, a tile of dQ."""
    sums = config.BN * (padded(task.head_dim) + padded(task.v_head_dim))
    dq = config.BM * padded(task.head_dim) if config.fuse_dq else 0
    return (max(gradient_pairs(config, task), dq) + gradient_rows(config) + sums) // (32 * config.num_warps)


def _constants(config: Config, head_dim: int, v_head_dim: int) -> dict[str, int | None]:
    here = {**portable_constants(config, head_dim, v_head_dim), "FUSE_DQ": config.fuse_dq}
    return here if config.fuse_dq else {**here, "dq_ptr": None}


def _types(
    dtype: torch.dtype, config: Config, head_dim: int, v_head_dim: int, grouped: bool, packed: bool
) -> dict[str, str]:  # fmt: skip
    """dQ is added up in float32, and so are dK and dV of query heads that share them."""
    sums = (["dq_ptr"] if config.fuse_dq else []) + (["dk_ptr", "dv_ptr"] if grouped else [])
    return dict.fromkeys(sums, "*fp32")


def _launch(
    variant: Variant, call: Call, config: Config, rows: Incoming, schedule: Mapping[str, Any], *_: Any
) -> Gradients:  # fmt: skip
    """dk and dv, and dq where the config fuses, else None. Returns dq, dk, dv."""
    dq_sums = query_sums(call) if config.fuse_dq else None
    dk, dv = key_gradients(call)
    relaunch(
        variant.kernels["backward_kv"], (call.layout, call.own, rows.strides, config),
        {**backward_tensors(call, rows), "dq_ptr": dq_sums, "dk_ptr": dk, "dv_ptr": dv, **schedule},
        lambda: BACKWARD_KV_KERNEL.setup(
            call, config, key_tiles(call, config, call.sizes.heads),
            {**row_numbers(call, rows), "stride_dqm": 0 if dq_sums is None else dq_sums.stride(2)},
        ),
    )  # fmt: skip
    dq = None if dq_sums is None else from_sums(call, dq_sums)
    return dq, sum_of_groups(call, dk), sum_of_groups(call, dv)


BACKWARD_KV_KERNEL = Kernel(
    name="backward_kv",
    family="backward_kv",
    function="_backward_kv",
    serves="all calls",
    domain={**PORTABLE_TILES, "fuse_dq": (0, 1)},
    default=_default,
    space=_space,
    starts=(
        Config(64, 64, 4, 2, fuse_dq=0), Config(64, 64, 4, 3, fuse_dq=1), Config(64, 128, 8, 2, fuse_dq=0),
        Config(32, 64, 4, 2, fuse_dq=0), Config(64, 128, 8, 2, fuse_dq=1),
    ),
    shared_bytes=_shared_bytes,
    accumulators=_accumulators,
    constants=_constants,
    types=_types,
    options=portable_options,
    launch=_launch,
    packs=True,
    without_dq=lambda config: config.but(fuse_dq=0),
)  # fmt: skip
