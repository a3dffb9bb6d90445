"""The Hopper kernel that makes dQ: what its launch hands it beyond what a call has."""

from __future__ import annotations

from functools import lru_cache

import torch
import triton

from flashgen.runtime.backward import Incoming
from flashgen.runtime.call import Call
from flashgen.runtime.config import Config
from flashgen.runtime.descriptors import Tiling
from flashgen.runtime.hopper import product_width
from flashgen.runtime.hopper_backward import tile_type, tiling

# A consumer's rows.
_ROWS = 64


def hopper_query_tiles(call: Call, incoming: Incoming, dq: torch.Tensor, config: Config) -> tuple[Tiling, ...]:
    """How the kernel sees what it reads and writes: q, d_out, k, v, dq."""
    width, v_width = tile_width(call.sizes.head_dim), tile_width(call.sizes.v_head_dim)
    return (
        tiling(call.q, _ROWS, width), tiling(incoming.d_out, _ROWS, v_width),
        tiling(call.k, config.BN, width), tiling(call.v, config.BN, v_width),
        tiling(dq, _ROWS, width),
    )  # fmt: skip


def hopper_query_types(dtype: torch.dtype, head_dim: int, v_head_dim: int, config: Config) -> dict[str, str]:
    """The types of these arguments by name, as Triton writes them."""
    width, v_width = tile_width(head_dim), tile_width(v_head_dim)
    tiles = {"q": (_ROWS, width), "do": (_ROWS, v_width), "k": (config.BN, width), "v": (config.BN, v_width)}
    tiles["dq"] = tiles["q"]
    return {f"{name}_desc": tile_type(dtype, *tile) for name, tile in tiles.items()}


def hopper_query_blocks(call: Call, config: Config) -> dict[str, int]:
    """The constants that the kernel is compiled for."""
    return query_blocks(config, call.sizes.head_dim, call.sizes.v_head_dim)


@lru_cache(maxsize=256)
def query_blocks(config: Config, head_dim: int, v_head_dim: int) -> dict[str, int]:
    return {
        "BM": config.BM,
        "BN": config.BN,
        "HEAD_DIM": product_width(head_dim),
        "V_HEAD_DIM": product_width(v_head_dim),
        "STAGES": config.num_stages,
        "V_STAGES": config.num_stages - 1,
        "CONSUMERS": config.consumers,
        "PING_PONG": config.ping_pong or 0,
    }


@lru_cache(maxsize=256)
def tile_width(dim: int) -> int:
    """Columns of a tile: a power of two."""
    width: int = triton.next_power_of_2(product_width(dim))
    return width
