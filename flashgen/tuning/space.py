"""The configs that are worth trying, before anything is compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from flashgen.runtime.config import Config
from flashgen.work import ITEMSIZE

# Shared memory that one block may have, in bytes.
SHARED_LIMIT = {
    "sm_80": 163 * 1024,
    "sm_86": 99 * 1024,
    "sm_87": 163 * 1024,
    "sm_89": 99 * 1024,
    "sm_90": 227 * 1024,
    "sm_100": 227 * 1024,
    "sm_103": 227 * 1024,
    "sm_120": 99 * 1024,
    "sm_121": 99 * 1024,
    "gfx942": 64 * 1024,
}
SMALLEST_SHARED_LIMIT = min(SHARED_LIMIT.values())

# Float32 accumulators of one thread beyond which nothing but spilling is possible (a thread has 255 registers).
ACCUMULATORS = 256

TILES_Q = (16, 32, 64, 128, 256)
TILES_KV = (16, 32, 64, 128, 256)
WARPS = (4, 8)
STAGES = (1, 2, 3, 4)

# Where a search begins after the configs that are known: shapes that have won on some GPU, far apart.
STARTS = (
    Config(64, 64, 4, 3), Config(128, 64, 8, 3), Config(64, 128, 4, 2), Config(128, 64, 4, 3), Config(128, 128, 8, 2),
)  # fmt: skip


@dataclass(frozen=True)
class Space:
    """The configs to search, in a fixed order, and how many were left out at once, by reason."""

    configs: tuple[Config, ...]
    dropped: Mapping[str, int]


def shared_limit(capability: str) -> int:
    """Bytes of shared memory for a block; an unknown GPU is taken for the smallest known one."""
    return SHARED_LIMIT.get(capability, SMALLEST_SHARED_LIMIT)


def padded(dim: int) -> int:
    """A head dimension as the kernel's tiles have it: a power of two, at least 16."""
    return max(16, 1 << (dim - 1).bit_length())


def shared_bytes(config: Config, dtype: str, head_dim: int, v_head_dim: int) -> int:
    """A lower bound of the shared memory that a forward kernel needs: what this rejects cannot run.

    A pipeline of several stages holds at least `num_stages - 1` tiles each of K and V; without one, a single tile may
    be there at a time, and Q may live in registers. The compiler judges the rest.
    """
    key, value = (config.BN * padded(dim) * ITEMSIZE[dtype] for dim in (head_dim, v_head_dim))
    return max(key, value) if config.num_stages == 1 else (config.num_stages - 1) * (key + value)


def accumulators(config: Config, v_head_dim: int) -> int:
    """Float32 values of the score tile and the output tile that one thread holds."""
    return config.BM * (config.BN + padded(v_head_dim)) // (32 * config.num_warps)


def distance(one: Config, two: Config) -> int:
    """How many steps apart: doublings of tiles and warps, single stages."""
    sizes = [(one.BM, two.BM), (one.BN, two.BN), (one.num_warps, two.num_warps)]
    return sum(abs(a.bit_length() - b.bit_length()) for a, b in sizes) + abs(one.num_stages - two.num_stages)


def search_space(
    capability: str, dtype: str, head_dim: int, v_head_dim: int, q_len: int, kv_len: int, *, scheduled: bool = False
) -> Space:
    """The forward kernel's configs for one workload on one kind of GPU.

    Tiles go at most one step beyond the lengths. A scheduled variant needs tiles of at least 32 by 32.
    """
    least = 32 if scheduled else 16
    tiles_q = [tile for tile in TILES_Q if least <= tile <= max(2 * q_len, 32)]
    tiles_kv = [tile for tile in TILES_KV if least <= tile <= max(2 * kv_len, 32)]
    # 16 rows waste most of a tensor core; they are for short queries and for tiles too large otherwise.
    if q_len > 64 and min(head_dim, v_head_dim) <= 128:
        tiles_q = [tile for tile in tiles_q if tile > 16]
        tiles_kv = [tile for tile in tiles_kv if tile > 16]
    limit, kept, dropped = shared_limit(capability), [], Counter[str]()
    for values in product(tiles_q, tiles_kv, WARPS, STAGES):
        config = Config(*values)
        if shared_bytes(config, dtype, head_dim, v_head_dim) > limit:
            dropped["shared memory"] += 1
        elif accumulators(config, v_head_dim) > ACCUMULATORS:
            dropped["registers"] += 1
        else:
            kept.append(config)
    return Space(tuple(kept), dict(dropped))
