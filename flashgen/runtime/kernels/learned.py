"""The portable kernel that makes the gradients of learned inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from flashgen.runtime.backward import Incoming
from flashgen.runtime.call import Call
from flashgen.runtime.config import Config
from flashgen.runtime.kernels.backward_q import DEFAULTS
from flashgen.runtime.kernels.kernel import Kernel, Task, query_tiles
from flashgen.runtime.kernels.portable import (
    PORTABLE_TILES,
    Table,
    backward_tensors,
    default_from,
    key_bytes,
    portable_constants,
    portable_options,
    row_numbers,
)
from flashgen.runtime.launching import relaunch
from flashgen.runtime.variant import Variant

# It has the loads of the kernel for dQ and one product less.
_DEFAULTS: Table = {
    **DEFAULTS,
    "sm90": (Config(128, 64, 8, 2), Config(128, 64, 8, 2), Config(64, 32, 8, 2), Config(64, 32, 8, 1)),
    "sm100": (Config(128, 64, 8, 2), Config(128, 64, 8, 2), Config(64, 32, 8, 2), Config(64, 32, 8, 1)),
}
_default = default_from(_DEFAULTS)


def _space(task: Task) -> Iterator[Config]:
    """The default alone: the kernel is not tuned."""
    yield _default("scheduled" if task.scheduled else "", *task.sizes)


def _accumulators(config: Config, task: Task) -> int:
    """Tiles of pairs alone."""
    return 2 * config.BM * config.BN // (32 * config.num_warps)


def for_loads(config: Config, loads: int) -> Config:
    """The config where so many values are read for each pair: of more than one a pipeline finds no room."""
    return config if loads < 2 else replace(config, num_stages=1)


def tiles_of_consumer(config: Config, keys: Config) -> Config:
    """The config where the kernel for dK and dV has made most of them: in the very tiles of a consumer there."""
    return replace(config, BM=keys.BM, BN=keys.BN // 2, num_warps=keys.BM // 16)


@dataclass(frozen=True, eq=False)
class InputSums:
    """The sums by the names of kernels' parameters, None for one that another kernel makes, and how they are made.

    `ways` are the compile-time arguments that say so, `at_once` is the number of heads that one launch is for.
    `strides` are those in which kernels number elements, by the names of their parameters.
    """

    tensors: Mapping[str, torch.Tensor | None]
    ways: Mapping[str, bool]
    at_once: int
    strides: Mapping[str, int]


def _constants(config: Config, head_dim: int, v_head_dim: int) -> Mapping[str, int | None]:
    """Where no call says otherwise, no other kernel has added anything up."""
    return {**portable_constants(config, head_dim, v_head_dim), "SKIP_UNIFORM": False}


def _launch(
    variant: Variant, call: Call, config: Config, rows: Incoming, schedule: Mapping[str, torch.Tensor],
    sums: InputSums, rest: bool,
) -> None:  # fmt: skip
    """Add to the sums, or the `rest` of what was added."""
    tensors = {**backward_tensors(call, rows), **sums.tensors, **schedule}
    ways, at_once = sums.ways, sums.at_once
    # Heads that share elements take turns, so that their order is always the same.
    heads = call.sizes.batch * call.sizes.heads
    for first_head in range(0, heads, at_once):
        relaunch(
            variant.kernels["learned"],
            (call.layout, call.own, rows.strides, config, *ways.values(), rest),
            {**tensors, "first_head": first_head},
            lambda: LEARNED_KERNEL.setup(
                call, config, query_tiles(call, config) * at_once // heads, {**row_numbers(call, rows), **sums.strides},
                {**ways, "SKIP_UNIFORM": rest},
            ),
        )  # fmt: skip


LEARNED_KERNEL = Kernel(
    name="learned",
    family="backward_inputs",
    function="_backward_inputs",
    serves="all calls of variants with learned inputs",
    domain=PORTABLE_TILES,
    tuned=False,
    default=_default,
    space=_space,
    shared_bytes=key_bytes,
    accumulators=_accumulators,
    constants=_constants,
    options=portable_options,
    launch=_launch,
    packs=True,
)
