"""The portable forward kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flashgen.runtime.call import Call
from flashgen.runtime.config import Config
from flashgen.runtime.kernels.kernel import Kernel, Task, query_tiles
from flashgen.runtime.kernels.portable import (
    PORTABLE_TILES,
    Table,
    default_from,
    key_bytes,
    portable_constants,
    portable_options,
    tile_shapes,
)
from flashgen.runtime.launching import relaunch
from flashgen.runtime.meanwhile import Relaunch
from flashgen.runtime.variant import Variant
from flashgen.runtime.widths import padded

_DEFAULTS: Table = {
    "sm80": (Config(64, 64, 4, 3), Config(32, 64, 4, 2), Config(32, 64, 8, 2), Config(32, 32, 8, 1)),
    "sm90": (Config(64, 64, 4, 3), Config(64, 64, 4, 3), Config(64, 32, 4, 2), Config(64, 32, 8, 2)),
    "sm100": (Config(64, 64, 4, 3), Config(64, 64, 4, 3), Config(64, 32, 4, 2), Config(64, 16, 8, 1)),
    "small": (Config(64, 32, 4, 2), Config(32, 64, 4, 2), Config(32, 64, 8, 2), Config(16, 16, 4, 1)),
    "other": (Config(64, 64, 4, 2), Config(64, 64, 4, 1), Config(64, 32, 4, 1), Config(32, 16, 4, 1)),
    "float32": (Config(32, 32, 8, 1), Config(16, 32, 4, 1), Config(16, 32, 4, 1), Config(16, 16, 8, 1)),
    "float32 by TMA": (Config(32, 32, 8, 1), Config(16, 32, 8, 1), Config(16, 16, 8, 1), Config(16, 16, 8, 1)),
}


def _space(task: Task) -> Iterator[Config]:
    return (Config(*shape) for shape in tile_shapes(task))


def _accumulators(config: Config, task: Task) -> int:
    """A tile of pairs, and the output."""
    return config.BM * (config.BN + padded(task.v_head_dim)) // (32 * config.num_warps)


def launch_forward(
    variant: Variant, call: Call, config: Config, tensors: Mapping[str, Any], by: Relaunch = relaunch
) -> None:  # fmt: skip
    """Write out, lse and residue, which are among the `tensors`, with what the kernel reads of the call.

    `by` launches it.
    """
    by(
        variant.kernels["forward"], (call.layout, call.own, config), tensors,
        lambda: FORWARD_KERNEL.setup(call, config, query_tiles(call, config)),
    )  # fmt: skip


FORWARD_KERNEL = Kernel(
    name="forward",
    family="forward",
    function="_forward",
    serves="all calls",
    domain=PORTABLE_TILES,
    default=default_from(_DEFAULTS),
    space=_space,
    # Shapes that have won on some GPU, far apart.
    starts=(
        Config(64, 64, 4, 3), Config(128, 64, 8, 3), Config(64, 128, 4, 2), Config(128, 64, 4, 3),
        Config(128, 128, 8, 2),
    ),
    shared_bytes=key_bytes,
    accumulators=_accumulators,
    constants=portable_constants,
    options=portable_options,
    launch=launch_forward,
    packs=True,
)  # fmt: skip
