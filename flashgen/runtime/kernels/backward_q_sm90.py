"""The kernel for Hopper that makes dQ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import torch
import triton

from flashgen.runtime.backward import Incoming, query_gradient
from flashgen.runtime.call import Call
from flashgen.runtime.config import Config
from flashgen.runtime.descriptors import Tiling
from flashgen.runtime.kernels.kernel import Kernel, Task, query_tiles
from flashgen.runtime.kernels.portable import Row, column
from flashgen.runtime.kernels.sm90 import BARRIERS, HOPPER, never_on, product_width, tile_type, tiling
from flashgen.runtime.kernels.sm90_queries import (
    QUERY_TILES,
    consumers_of,
    head_group,
    query_options,
    query_spill_limit,
)
from flashgen.runtime.launching import relaunch
from flashgen.runtime.variant import Variant
from flashgen.runtime.widths import padded

# A consumer's rows.
_ROWS = 64

_DEFAULTS: Row = (
    Config(128, 128, 4, 3, "hopper", ping_pong=0),
    Config(128, 128, 4, 3, "hopper", ping_pong=0),
    Config(128, 64, 4, 2, "hopper", ping_pong=0),
)


def _refuses(capability: str, dtype: str, head_dim: int, v_head_dim: int) -> str:
    # What it writes by TMA.
    odd = f"rows of dq must be a multiple of 16 bytes, head_dim is {head_dim}" if head_dim % 8 else ""
    return never_on(capability, dtype, head_dim, v_head_dim) or odd


def _default(form: str, capability: str, dtype: str, head_dim: int, v_head_dim: int) -> Config:
    return _DEFAULTS[column(head_dim, v_head_dim)]


def _space(task: Task) -> Iterator[Config]:
    """Two or three consumers of 64 rows, as in the forward; tiles of S and dP beside dQ have to fit the registers."""
    if task.q_len < 64:
        return
    widest = max(padded(task.head_dim), padded(task.v_head_dim))
    for consumers, BN, stages, ping_pong in product((2, 3), (64, 128), (2, 3, 4), (0, 1)):
        if BN * widest > 16384 or (consumers == 3 and (task.scheduled or BN * widest > 4096)):
            continue
        yield Config(64 * consumers, BN, 4, stages, "hopper", ping_pong=ping_pong)


def _shared_bytes(config: Config, task: Task) -> int:
    """Q and dO, stages of K, one less of V, barriers."""
    one, other = padded(task.head_dim), padded(task.v_head_dim)
    streamed = config.num_stages * one + (config.num_stages - 1) * other
    return 2 * (config.BM * (one + other) + config.BN * streamed) + BARRIERS


def _constants(config: Config, head_dim: int, v_head_dim: int) -> dict[str, int | None]:
    return {
        "BM": config.BM,
        "BN": config.BN,
        "HEAD_DIM": product_width(head_dim),
        "V_HEAD_DIM": product_width(v_head_dim),
        "STAGES": config.num_stages,
        "V_STAGES": config.num_stages - 1,
        "CONSUMERS": consumers_of(config),
        "PING_PONG": config.ping_pong,
    }


def _tile_width(dim: int) -> int:
    """Columns of a tile: a power of two."""
    width: int = triton.next_power_of_2(product_width(dim))
    return width


def _types(
    dtype: torch.dtype, config: Config, head_dim: int, v_head_dim: int, grouped: bool, packed: bool
) -> dict[str, str]:  # fmt: skip
    width, v_width = _tile_width(head_dim), _tile_width(v_head_dim)
    tiles = {"q": (_ROWS, width), "do": (_ROWS, v_width), "k": (config.BN, width), "v": (config.BN, v_width)}
    tiles["dq"] = tiles["q"]
    return {f"{name}_desc": tile_type(dtype, *tile, packed) for name, tile in tiles.items()}


def _tilings(call: Call, rows: Incoming, dq: torch.Tensor, config: Config) -> dict[str, Tiling]:
    """How the kernel sees what it reads and writes by tiles."""
    width, v_width = _tile_width(call.sizes.head_dim), _tile_width(call.sizes.v_head_dim)
    packed = call.sizes.packed
    return {
        "q_desc": tiling(call.q, _ROWS, width, packed),
        "do_desc": tiling(rows.d_out, _ROWS, v_width, packed),
        "k_desc": tiling(call.k, config.BN, width, packed),
        "v_desc": tiling(call.v, config.BN, v_width, packed),
        "dq_desc": tiling(dq, _ROWS, width, packed),
    }


def _launch(
    variant: Variant, call: Call, config: Config, rows: Incoming, schedule: Mapping[str, Any]
) -> torch.Tensor:  # fmt: skip
    """dq."""
    dq = query_gradient(call)
    relaunch(
        variant.kernels["backward_q_sm90"], (call.layout, call.own, rows.strides, config),
        {
            "q_desc": call.q, "do_desc": rows.d_out, "k_desc": call.k, "v_desc": call.v, "dq_desc": dq,
            "lse_ptr": rows.lse, "delta_ptr": rows.delta, **schedule, **call.given,
        },
        lambda: BACKWARD_Q_SM90_KERNEL.setup(
            call, config, query_tiles(call, config), {**rows.numbers, "head_group": head_group(call)},
            tilings=_tilings(call, rows, dq, config),
        ),
    )  # fmt: skip
    return dq


BACKWARD_Q_SM90_KERNEL = Kernel(
    name="backward_q_sm90",
    family="backward_q",
    backend="hopper",
    capability=HOPPER,
    function="_backward_q_sm90",
    serves=f"float16 and bfloat16 on {HOPPER}, head_dim a multiple of 8",
    refuses=_refuses,
    domain=QUERY_TILES,
    default=_default,
    space=_space,
    shared_bytes=_shared_bytes,
    spill_limit=query_spill_limit,
    constants=_constants,
    types=_types,
    options=query_options,
    launch=_launch,
    packs=True,
    barriers=("_backward_q_sm90",),
)
