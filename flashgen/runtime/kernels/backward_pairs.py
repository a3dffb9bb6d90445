"""The portable kernel that makes the gradients of learned inputs of which each pair has an element."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from flashgen.runtime.backward import Incoming, d_out_strides
from flashgen.runtime.call import Call, qkv_strides
from flashgen.runtime.config import Config
from flashgen.runtime.declared import Owner, names_of
from flashgen.runtime.kernels.backward_q import DEFAULTS
from flashgen.runtime.kernels.kernel import Kernel, Task
from flashgen.runtime.kernels.portable import (
    PORTABLE_TILES,
    Table,
    backward_tensors,
    default_from,
    portable_constants,
    portable_options,
    row_numbers,
    streamed_bytes,
)
from flashgen.runtime.launching import relaunch
from flashgen.runtime.strides import aligned_copy, row_strides
from flashgen.runtime.variant import Variant

_DEFAULTS: Table = {
    **DEFAULTS,
    "sm90": (Config(64, 64, 4, 2), Config(64, 128, 8, 2), Config(64, 32, 8, 1), Config(64, 32, 8, 1)),
    "sm100": (Config(64, 64, 4, 2), Config(64, 128, 8, 2), Config(64, 32, 8, 1), Config(64, 32, 8, 1)),
}
# What is read for each pair is in the pipeline too: for more bytes there is no room beside wide tiles, or at all.
_BYTES_OF_WIDE_TILES, _BYTES_OF_A_PIPELINE = 2, 4
_default = default_from(_DEFAULTS)
# Programs for each multiprocessor: as many as make up for those that are done early, or fill it at all.
_ENOUGH, _FEW = 8, 2
# Bytes of the sums of all splits at most: an input may have room for more pairs than a call has.
_BYTES_OF_SPLITS = 64 << 20
# What the interpreter counts as, so that runs and splits are tried there too.
_INTERPRETED = 2


@dataclass(frozen=True)
class Groups:
    """`count` groups of batch elements or heads that share elements, of `size` at most; the kernel takes the `step`, as
    an `Owner` has it."""

    count: int
    size: int
    step: int

    @staticmethod
    def of(many: int, owner: Owner | None, sizes: Mapping[str, Any]) -> Groups:
        """Of so many batch elements or heads, all of which share elements where there is no owner."""
        if owner is None:
            return Groups(1, many, 1)
        if owner.group is None:
            return Groups(many, 1, 1)
        step = owner.group(*(sizes[name] for name in names_of(owner.group)))
        often = -(-many // step)
        return Groups(min(step, many), often, step) if owner.strided else Groups(often, min(step, many), step)


@dataclass(frozen=True)
class Shares:
    """How the work is shared out: a program for each `run` tiles of keys of each tile of queries of each owner of
    elements, for each of `splits` parts of those who share them."""

    programs: int
    run: int
    splits: int


@lru_cache(maxsize=256)
def shares(owners: int, sharers: int, q_tiles: int, k_tiles: int, multiprocessors: int, most: int) -> Shares:
    """Runs as long as there are enough programs; splits, `most` at most, where there are too few."""
    programs = owners * q_tiles * k_tiles
    run = max(1, min(k_tiles, programs // (_ENOUGH * multiprocessors)))
    wanted = min(sharers, most, -(-_FEW * multiprocessors // programs))
    each = -(-sharers // wanted)
    splits = -(-sharers // each)
    return Shares(owners * q_tiles * -(-k_tiles // run) * splits, run, splits)


def shares_of(call: Call, config: Config, groups: Mapping[str, Groups], elements: int) -> Shares:
    """Those of a call, where the inputs have so many elements in all."""
    s = call.sizes
    gpu = call.q.get_device()
    many = _INTERPRETED if gpu < 0 else torch.cuda.get_device_properties(gpu).multi_processor_count
    tiles = -(-s.q_len // config.BM), -(-s.kv_len // config.BN)
    owners, sharers = (math.prod(found) for found in zip(*((g.count, g.size) for g in groups.values()), strict=True))
    return shares(owners, sharers, *tiles, many, max(1, _BYTES_OF_SPLITS // (4 * max(elements, 1))))


def for_bytes(config: Config, pair_bytes: int) -> Config:
    """The config where so many bytes are read for each pair."""
    if config.BN == 128 and pair_bytes > _BYTES_OF_WIDE_TILES:
        config = replace(config, BN=64, num_warps=4)
    return replace(config, num_stages=1) if pair_bytes > _BYTES_OF_A_PIPELINE else config


def _space(task: Task) -> Iterator[Config]:
    """The default alone: the kernel is not tuned."""
    yield _default("", *task.sizes)


def _shared_bytes(config: Config, task: Task) -> int:
    """It streams q, k, v and d_out."""
    return streamed_bytes(config.BM + config.BN, config, task)


def _accumulators(config: Config, task: Task) -> int:
    """Scores, their gradients and a sum."""
    return 3 * config.BM * config.BN // (32 * config.num_warps)


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy where it repeats along a dimension, of which no hardware knows tiles in four dimensions."""
    repeats = any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    return aligned_copy(tensor) if repeats else tensor


def _launch(
    variant: Variant, call: Call, config: Config, rows: Incoming, sums: Mapping[str, torch.Tensor],
    strides: Mapping[str, int], groups: Mapping[str, Groups], shared_out: Shares,
) -> None:  # fmt: skip
    """Store each element's sum, `sums` by the names of the places where inputs are read, [splits, *shape] each, in
    which elements are numbered in these `strides`. `groups` are those of "b" and "h"."""
    tensors = backward_tensors(call, rows)
    tensors |= {name: _apart(tensors[name]) for name in ("q_ptr", "k_ptr", "v_ptr", "d_out_ptr")}
    q, k, v, d_out = (tensors[name] for name in ("q_ptr", "k_ptr", "v_ptr", "d_out_ptr"))
    relaunch(
        variant.kernels["backward_pairs"],
        (call.layout, call.own, rows.strides, config, *groups.values(), shared_out),
        {**tensors, **{f"{name}_ptr": each for name, each in sums.items()}},
        lambda: BACKWARD_PAIRS_KERNEL.setup(
            call, config, shared_out.programs,
            {
                **row_numbers(call, rows), **qkv_strides(stride for each in (q, k, v) for stride in row_strides(each)),
                **d_out_strides(row_strides(d_out)),
                **strides, "run": shared_out.run, "splits": shared_out.splits,
                **{f"{axis}_groups": each.count for axis, each in groups.items()},
                **{f"{axis}_group": each.step for axis, each in groups.items()},
                **{f"{name}_split": each[0].numel() for name, each in sums.items()},
            },
        ),
    )  # fmt: skip


BACKWARD_PAIRS_KERNEL = Kernel(
    name="backward_pairs",
    family="backward_pairs",
    function="_backward_pairs",
    serves="dense calls of variants whose learned inputs have an element for each pair",
    domain=PORTABLE_TILES,
    tuned=False,
    default=_default,
    space=_space,
    shared_bytes=_shared_bytes,
    accumulators=_accumulators,
    constants=portable_constants,
    options=portable_options,
    launch=_launch,
)
