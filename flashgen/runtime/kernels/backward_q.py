"""The portable kernel that makes dQ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from flashgen.runtime.backward import Incoming, query_gradient
from flashgen.runtime.call import Call
from flashgen.runtime.config import Config
from flashgen.runtime.kernels.kernel import Kernel, Task, query_tiles
from flashgen.runtime.kernels.portable import (
    PORTABLE_TILES,
    Table,
    backward_tensors,
    default_from,
    gradient_pairs,
    gradient_rows,
    key_bytes,
    portable_constants,
    portable_options,
    row_numbers,
    tile_shapes,
)
from flashgen.runtime.launching import relaunch
from flashgen.runtime.variant import Variant
from flashgen.runtime.widths import padded

DEFAULTS: Table = {
    "sm80": (Config(64, 64, 4, 2), Config(32, 64, 8, 2), Config(32, 32, 8, 1), Config(32, 32, 8, 1)),
    "sm90": (Config(128, 64, 8, 3), Config(128, 64, 8, 3), Config(64, 32, 8, 2), Config(64, 32, 8, 1)),
    "sm100": (Config(128, 64, 8, 2), Config(64, 64, 8, 1), Config(64, 32, 8, 2), Config(64, 32, 8, 1)),
    "small": (Config(64, 32, 4, 2), Config(32, 32, 4, 1), Config(16, 32, 4, 1), Config(16, 32, 8, 1)),
    "other": (Config(64, 32, 4, 1), Config(64, 32, 8, 2), Config(32, 16, 4, 1), Config(16, 16, 4, 1)),
    "float32": (Config(32, 32, 8, 1), Config(32, 16, 8, 1), Config(16, 16, 8, 1), Config(8, 16, 4, 1)),
    "float32 by TMA": (Config(16, 16, 8, 1), Config(16, 16, 8, 1), Config(16, 16, 8, 1), Config(16, 16, 8, 1)),
}


def _space(task: Task) -> Iterator[Config]:
    return (Config(*shape) for shape in tile_shapes(task, (1, 2, 3)))


def _accumulators(config: Config, task: Task) -> int:
    """Pairs, rows and dQ."""
    dq = config.BM * padded(task.head_dim)
    return (gradient_pairs(config, task) + gradient_rows(config) + dq) // (32 * config.num_warps)


def _launch(
    variant: Variant, call: Call, config: Config, rows: Incoming, schedule: Mapping[str, Any]
) -> torch.Tensor:  # fmt: skip
    """dq."""
    dq = query_gradient(call)
    relaunch(
        variant.kernels["backward_q"], (call.layout, call.own, rows.strides, config),
        {**backward_tensors(call, rows), "dq_ptr": dq, **schedule},
        lambda: BACKWARD_Q_KERNEL.setup(call, config, query_tiles(call, config), row_numbers(call, rows)),
    )  # fmt: skip
    return dq


BACKWARD_Q_KERNEL = Kernel(
    name="backward_q",
    family="backward_q",
    function="_backward_q",
    serves="all calls",
    domain=PORTABLE_TILES,
    default=default_from(DEFAULTS),
    space=_space,
    starts=(Config(128, 64, 8, 3), Config(64, 32, 4, 3), Config(64, 64, 4, 3), Config(128, 128, 8, 2)),
    shared_bytes=key_bytes,
    accumulators=_accumulators,
    constants=portable_constants,
    options=portable_options,
    launch=_launch,
    packs=True,
)
