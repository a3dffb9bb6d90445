"""What the kernels for dK and dV on Hopper have in common: whom they serve, what they read and write by tiles."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from triton.experimental.gluon import language as gl

from flashgen.runtime.backward import Incoming
from flashgen.runtime.call import Call, room, room_like
from flashgen.runtime.config import Config
from flashgen.runtime.descriptors import Tile, Tiling
from flashgen.runtime.device.order import order_sequences
from flashgen.runtime.kernels.sm90 import (
    consumer_options,
    even_share,
    multiprocessors,
    never_on,
    tile_type,
    tiling,
)
from flashgen.runtime.launching import Setup, relaunch
from flashgen.runtime.widths import padded

# Q and dO of the heads whose tiles are taken together, in bytes: they should stay in the 50 MB of the L2 cache.
_QUERY_GROUP_BYTES = 16 << 20
# Rows of the longest packed sequence for the heads of k and v whose tiles are taken together: at 4096 keys four heads,
# which were up to 4 % faster than eight and than one.
_PACKED_GROUP_ROWS = 16384

# Sequences that a program of the order looks at at a time.
_BLOCK = 64

_ROWS_LAYOUT = gl.NVMMASharedLayout(0, 32, rank=1)


def refuses_keys(capability: str, dtype: str, head_dim: int, v_head_dim: int) -> str:
    """Why neither of them serves such calls; "" where one does."""
    # What they write by TMA.
    odd = f"rows of dk and dv must be multiples of 16 bytes, head_dim is {head_dim}, v_head_dim {v_head_dim}"
    return never_on(capability, dtype, head_dim, v_head_dim) or (odd if head_dim % 8 or v_head_dim % 8 else "")


def v_block_width(v_head_dim: int) -> int:
    """Columns of a tile of v and d_out."""
    return max(64, padded(v_head_dim))


def key_types(dtype: torch.dtype, BM: int, rows: int, width: int, v_width: int, packed: bool) -> dict[str, str]:
    """The types of what a kernel for dK and dV reads and writes by tiles, of so many keys."""
    tiles = {"q": (BM, width), "do": (BM, v_width), "k": (rows, width), "v": (rows, v_width)}
    tiles |= {"dk": tiles["k"], "dv": tiles["v"]}
    types = {f"{n}_desc": tile_type(dtype, *tile, packed) for n, tile in tiles.items()}
    return types | dict.fromkeys(("lse_desc", "delta_desc"), f"tensordesc<fp32{[BM]},{_ROWS_LAYOUT!r}>")


def key_options(config: Config) -> dict[str, Any]:
    """Launch options: there are two consumers."""
    return consumer_options(2)


def key_tilings(
    call: Call, rows: Incoming, dk: torch.Tensor, dv: torch.Tensor, BM: int, BN: int, width: int, v_width: int
) -> dict[str, Tiling]:
    """How a kernel for dK and dV sees tensors by tiles of BM rows or BN keys; two widths, of q and k and of v."""
    packed = call.sizes.packed
    return {
        "q_desc": tiling(call.q, BM, width, packed),
        "do_desc": tiling(rows.d_out, BM, v_width, packed),
        "k_desc": tiling(call.k, BN, width, packed),
        "v_desc": tiling(call.v, BN, v_width, packed),
        "lse_desc": row_tiling(rows.delta, BM),
        "delta_desc": row_tiling(rows.delta, BM),
        "dk_desc": tiling(dk, BN, width, packed),
        "dv_desc": tiling(dv, BN, v_width, packed),
    }


def key_tensors(call: Call, rows: Incoming, config: Config) -> dict[str, Any]:
    """What a kernel for dK and dV reads of each call: tensors by tiles, and of packed sequences their order."""
    order = {"order_ptr": _order(call, config)} if call.sizes.packed else {}
    return {
        "q_desc": call.q, "do_desc": rows.d_out, "k_desc": call.k, "v_desc": call.v, "lse_desc": rows.lse_by_tile,
        "delta_desc": rows.delta, **order, **call.given,
    }  # fmt: skip


def _order(call: Call, config: Config) -> torch.Tensor:
    """Packed sequences of keys in the order in which their tiles are taken, as `order_sequences` writes it."""
    numbers = call.numbers
    count = numbers["num_seqs"] + 1
    order = call.q.new_empty(2 * count + 1, dtype=torch.int32)
    relaunch(
        order_sequences, (call.layout, config.BN),
        {"cu_seqlens_k_ptr": call.given["cu_seqlens_k_ptr"], "order_ptr": order},
        lambda: Setup(-(-count // _BLOCK), numbers, {"BN": config.BN, "BLOCK": _BLOCK}, {}),
    )  # fmt: skip
    return order


def hopper_key_gradients(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the kernel writes dk and dv: it sums over the heads that share keys."""
    s = call.sizes
    if not s.packed:
        return room_like(call.k), room_like(call.v)
    dk, dv = (room(call.k, (*s.keys_of(s.kv_heads), dim), True) for dim in (s.head_dim, s.v_head_dim))
    return dk, dv


def key_head_group(call: Call, config: Config) -> int:
    """How many heads of k and v are taken together, in groups of like size, or all.

    Those whose Q and dO fit the L2 cache, but no fewer than have a tile of keys for each multiprocessor.
    """
    s = call.sizes
    if s.packed:
        return s.kv_heads if config.all_heads else even_share(s.kv_heads, max(1, _PACKED_GROUP_ROWS // s.kv_len))
    total = s.batch * s.kv_heads
    if config.all_heads:
        return total
    bytes_each = s.q_len * (s.head_dim + s.v_head_dim) * call.q.element_size() * (s.heads // s.kv_heads)
    busy = -(-multiprocessors(call.q.get_device()) // -(-s.kv_len // config.BN))
    groups = min(-(-total * bytes_each // _QUERY_GROUP_BYTES), total // busy)
    return -(-total // max(1, groups))


def row_tiling(values: torch.Tensor, rows: int) -> Tiling:
    """Float32 values of rows, one after the other, by tiles."""
    return Tiling((values.numel(),), (1,), _tile_of_rows(rows))


@lru_cache(maxsize=64)
def _tile_of_rows(rows: int) -> Tile:
    return Tile((rows,), torch.float32, _ROWS_LAYOUT)
