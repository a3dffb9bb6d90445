"""What the portable kernels, in Triton, have in common.

The built-in configs were chosen by compiling the gallery for each of them: they fit its shared memory and, for 16-bit
dtypes, spill hardly any registers. Full-precision products of float32 take many; there these configs spill the least.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from flashgen.runtime.backward import Incoming, d_out_strides
from flashgen.runtime.call import Call
from flashgen.runtime.config import Config
from flashgen.runtime.gpus import gpu_of
from flashgen.runtime.kernels.kernel import Task, Values
from flashgen.runtime.widths import padded, tile_widths

# The largest head dimension of each column of a table.
_UP_TO = (64, 128, 256, 512)
Row = tuple[Config, ...]
# By the kind of GPU, and for float32.
Table = Mapping[str, Row]

# Sides of 8 are for float32 of the widest heads, for which some GPUs have no room otherwise.
PORTABLE_TILES: Mapping[str, Values] = {
    "BM": (8, 16, 32, 64, 128, 256),
    "BN": (8, 16, 32, 64, 128, 256),
    "num_warps": (1, 2, 4, 8, 16),
    "num_stages": tuple(range(1, 9)),
}
_WARPS = (4, 8)
_STAGES = (1, 2, 3, 4)
ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4}


def column(head_dim: int, v_head_dim: int) -> int:
    """The column of a table for these head dimensions."""
    return bisect_left(_UP_TO, max(head_dim, v_head_dim))


def _chosen(table: Table, capability: str, dtype: str, head_dim: int, v_head_dim: int) -> Config:
    """A table's config for a GPU and these sizes."""
    gpu = gpu_of(capability)
    kind = gpu.kind
    if dtype == "float32":
        kind = "float32 by TMA" if gpu.tma else "float32"
    config = table[kind][column(head_dim, v_head_dim)]
    # With four warps a thread of an AMD GPU may have 512 registers, which products of float32 of wide heads take.
    many = dtype == "float32" and gpu.multiprocessor.lanes == 64 and max(head_dim, v_head_dim) > 64
    return replace(config, num_warps=4) if many else config


def default_from(table: Table) -> Callable[[str, str, str, int, int], Config]:
    """The built-in configs of a kernel from its table."""

    def default(form: str, capability: str, dtype: str, head_dim: int, v_head_dim: int) -> Config:
        config = _chosen(table, capability, dtype, head_dim, v_head_dim)
        walks_schedule = form in ("scheduled", "by key", "functions")
        # Of the widest heads a GPU may have no room for larger tiles.
        return scheduled_tiles(config) if walks_schedule and max(head_dim, v_head_dim) <= _UP_TO[-2] else config

    return default


def scheduled_tiles(config: Config) -> Config:
    """Tiles of at least 512 pairs, each with an index of 4 bytes in the schedule.

    It then takes under 0.2 % of one score matrix in float32, the dtype with the smallest tiles. What sorts tiles wants
    their sides to be powers of two.
    """
    return config if config.BM * config.BN >= 512 else replace(config, BN=512 // config.BM)


def tile_shapes(task: Task, stages: tuple[int, ...] = _STAGES) -> Iterator[tuple[int, int, int, int]]:
    """BM, BN, warps and stages that are worth trying."""
    return product(*_tiles(task), _WARPS, stages)


def _tiles(task: Task) -> tuple[list[int], list[int]]:
    """Numbers of query rows and of keys: at most one step beyond the lengths; for a schedule at least 32 by 32."""
    least = 32 if task.scheduled else 16
    tiles_q = [tile for tile in PORTABLE_TILES["BM"] if tile and least <= tile <= max(2 * task.q_len, 32)]
    tiles_kv = [tile for tile in PORTABLE_TILES["BN"] if tile and least <= tile <= max(2 * task.kv_len, 32)]
    # 16 rows waste most of a tensor core; they are for short queries and for tiles too large otherwise.
    if task.q_len > 64 and min(task.head_dim, task.v_head_dim) <= 128:
        tiles_q = [tile for tile in tiles_q if tile > 16]
        tiles_kv = [tile for tile in tiles_kv if tile > 16]
    return tiles_q, tiles_kv


def streamed_bytes(rows: int, config: Config, task: Task) -> int:
    """A lower bound of the shared memory that a kernel needs: what this rejects cannot run.

    A pipeline of several stages holds at least `num_stages - 1` tiles, of so many rows, each of the two tensors that
    are streamed. Without one, a single tile may be there at a time, and what stays may live in registers. The compiler
    judges the rest.
    """
    one, other = (rows * padded(dim) * ITEMSIZE[task.dtype] for dim in (task.head_dim, task.v_head_dim))
    return max(one, other) if config.num_stages == 1 else (config.num_stages - 1) * (one + other)


def gradient_pairs(config: Config, task: Task) -> int:
    """Pairs of a tile that the backward pass has in registers: without tensor cores the weights beside dP."""
    return config.BM * config.BN * (2 if task.exact else 1)


def gradient_rows(config: Config) -> int:
    """What it has there of the rows of a tile: LSE and delta."""
    return 2 * config.BM


def key_bytes(config: Config, task: Task) -> int:
    """`streamed_bytes` of a kernel that streams K and V."""
    return streamed_bytes(config.BN, config, task)


def portable_constants(config: Config, head_dim: int, v_head_dim: int) -> dict[str, int | None]:
    """The compile-time arguments that all of them have."""
    width, v_width = tile_widths(head_dim, v_head_dim)
    return {"HEAD_DIM": width, "V_HEAD_DIM": v_width, "BM": config.BM, "BN": config.BN, "STAGES": config.num_stages}


def backward_tensors(call: Call, rows: Incoming) -> dict[str, Any]:
    """What those of the backward pass read of each call."""
    return {
        "q_ptr": call.q, "k_ptr": call.k, "v_ptr": call.v, "d_out_ptr": rows.d_out, "lse_ptr": rows.lse,
        "delta_ptr": rows.delta, **call.given,
    }  # fmt: skip


def row_numbers(call: Call, rows: Incoming) -> dict[str, int]:
    """The numbers that belong to those."""
    return {"num_rows": rows.num_rows, **d_out_strides(call.counted_strides(rows.strides))}


def portable_options(config: Config) -> dict[str, Any]:
    """Launch options."""
    return {"num_warps": config.num_warps, "num_stages": config.num_stages}
