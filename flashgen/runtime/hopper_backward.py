"""The Hopper kernel that makes dK, dV and parts of dQ: what its launch hands it beyond what a call has."""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
from triton.experimental.gluon import language as gl

from flashgen.runtime.backward import Incoming, num_rows
from flashgen.runtime.call import Call, room_like
from flashgen.runtime.config import Config
from flashgen.runtime.descriptors import Tile, Tiling, rows_tiling
from flashgen.runtime.hopper import multiprocessors, product_width

# Q and dO of the heads whose tiles are taken together, in bytes: they should stay in the 50 MB of the L2 cache.
_QUERY_GROUP_BYTES = 16 << 20
_DTYPES = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}

_ROWS_LAYOUT = gl.NVMMASharedLayout(0, 32, rank=1)
_FRAGMENTS_LAYOUT = gl.NVMMASharedLayout(0, 32, rank=2)
_FRAGMENTS = Tile((16, 256), torch.float32, _FRAGMENTS_LAYOUT)


def hopper_backward_programs(call: Call, config: Config) -> int:
    """One program for each tile of keys of each head of k and v."""
    s = call.sizes
    return -(-s.kv_len // config.BN) * s.batch * s.kv_heads


def hopper_backward_programs_at_once(call: Call, config: Config) -> int:
    """As many programs as the GPU runs at once, which share these tiles."""
    return min(hopper_backward_programs(call, config), multiprocessors(call.q.get_device()))


def hopper_backward_tiles(
    call: Call, incoming: Incoming, sums: torch.Tensor | None, dk: torch.Tensor, dv: torch.Tensor, config: Config
) -> tuple[Tiling | None, ...]:
    """How the kernel sees what it reads and writes: q, d_out, k, v, lse, delta, dq, dk, dv.

    dq is a tensor where threads add to it, None where it is left to another kernel.
    """
    BM, rows = config.BM, config.BN // 2
    width, v_width = block_width(config), v_block_width(call.sizes.v_head_dim)
    return (
        tiling(call.q, BM, width), tiling(incoming.d_out, BM, v_width),
        tiling(call.k, rows, width), tiling(call.v, rows, v_width),
        _rows(incoming.delta, BM), _rows(incoming.delta, BM),
        _fragments(sums) if sums is not None and config.fuse_dq == 2 else None,
        tiling(dk, rows, width), tiling(dv, rows, v_width),
    )  # fmt: skip


def block_width(config: Config) -> int:
    """Columns of a tile of q and k: as many as make a tile of dq 8192 elements, which is what the consumers hold."""
    return 8192 // config.BM


def v_block_width(v_head_dim: int) -> int:
    """Columns of a tile of v and d_out."""
    width: int = max(64, triton.next_power_of_2(v_head_dim))
    return width


def hopper_backward_types(dtype: torch.dtype, v_head_dim: int, config: Config) -> dict[str, str]:
    """The types of these arguments by name, as Triton writes them."""
    rows, width, v_width = config.BN // 2, block_width(config), v_block_width(v_head_dim)
    tiles = {"q": (config.BM, width), "do": (config.BM, v_width), "k": (rows, width), "v": (rows, v_width)}
    tiles |= {"dk": tiles["k"], "dv": tiles["v"]}
    types = {f"{n}_desc": tile_type(dtype, *tile) for n, tile in tiles.items()}
    types |= dict.fromkeys(("lse_desc", "delta_desc"), f"tensordesc<fp32{[config.BM]},{_ROWS_LAYOUT!r}>")
    return types | {"dq_sums": f"tensordesc<fp32[16, 256],{_FRAGMENTS_LAYOUT!r}>" if config.fuse_dq == 2 else "*fp32"}


def hopper_key_gradients(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the kernel writes dk and dv: it sums over the heads that share keys."""
    return room_like(call.k), room_like(call.v)


def hopper_wide_tiles(
    call: Call, incoming: Incoming, dk: torch.Tensor, dv: torch.Tensor, config: Config
) -> tuple[Tiling, ...]:
    """How the kernel for wide heads sees what it reads and writes: q, d_out, k, v, lse, delta, dk, dv."""
    BM, BN = config.BM, config.BN
    width, v_width = v_block_width(call.sizes.head_dim), v_block_width(call.sizes.v_head_dim)
    return (
        tiling(call.q, BM, width), tiling(incoming.d_out, BM, v_width),
        tiling(call.k, BN, width), tiling(call.v, BN, v_width),
        _rows(incoming.delta, BM), _rows(incoming.delta, BM),
        tiling(dk, BN, width), tiling(dv, BN, v_width),
    )  # fmt: skip


def hopper_wide_types(dtype: torch.dtype, head_dim: int, v_head_dim: int, config: Config) -> dict[str, str]:
    """The types of these arguments by name, as Triton writes them."""
    width, v_width = v_block_width(head_dim), v_block_width(v_head_dim)
    tiles = {"q": (config.BM, width), "do": (config.BM, v_width), "k": (config.BN, width), "v": (config.BN, v_width)}
    tiles |= {"dk": tiles["k"], "dv": tiles["v"]}
    types = {f"{n}_desc": tile_type(dtype, *tile) for n, tile in tiles.items()}
    return types | dict.fromkeys(("lse_desc", "delta_desc"), f"tensordesc<fp32{[config.BM]},{_ROWS_LAYOUT!r}>")


def hopper_wide_blocks(call: Call, config: Config) -> dict[str, int]:
    """The constants that the kernel for wide heads is compiled for."""
    return wide_blocks(config, call.sizes.head_dim, call.sizes.v_head_dim)


@lru_cache(maxsize=256)
def wide_blocks(config: Config, head_dim: int, v_head_dim: int) -> dict[str, int]:
    dims = {"HEAD_DIM": product_width(max(64, head_dim)), "V_HEAD_DIM": product_width(max(64, v_head_dim))}
    return {"BM": config.BM, "BN": config.BN, **dims, "STAGES": config.num_stages}


def hopper_query_sums(call: Call, config: Config) -> torch.Tensor | None:
    """Where the kernel adds up dq without its scale, if it does: room for float32 [rows, columns], by tiles of 64 x 64.

    The rows are those of all heads that `incoming` has; `_delta` clears them.
    """
    if config.backend != "hopper" or not config.fuse_dq:
        return None
    s = call.sizes
    shape = s.batch * s.heads * num_rows(s.q_len), block_width(config)
    return torch.empty(shape, dtype=torch.float32, device=call.q.device)


def key_head_group(call: Call, config: Config) -> int:
    """How many heads of k and v are taken together, in groups of like size, or all.

    Those whose Q and dO fit the L2 cache, but no fewer than have a tile of keys for each multiprocessor.
    """
    s = call.sizes
    total = s.batch * s.kv_heads
    if config.all_heads:
        return total
    bytes_each = s.q_len * (s.head_dim + s.v_head_dim) * call.q.element_size() * (s.heads // s.kv_heads)
    busy = -(-multiprocessors(call.q.get_device()) // -(-s.kv_len // config.BN))
    groups = min(-(-total * bytes_each // _QUERY_GROUP_BYTES), total // busy)
    return -(-total // max(1, groups))


def tiling(tensor: torch.Tensor, rows: int, width: int) -> Tiling:
    """A tensor [batch, heads, length, dim] by tiles; what lies beyond its ends reads as zero and is not written."""
    return rows_tiling(tensor.shape, tensor.stride(), _tile_of(rows, width, tensor.dtype))


@lru_cache(maxsize=64)
def _tile_of(rows: int, width: int, dtype: torch.dtype) -> Tile:
    return Tile((1, 1, rows, width), dtype, _tile_layout(rows, width, dtype))


def tile_type(dtype: torch.dtype, rows: int, width: int) -> str:
    """The type of such a descriptor, as Triton writes it."""
    name = {torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    return f"tensordesc<{name}{[1, 1, rows, width]},{_tile_layout(rows, width, dtype)!r}>"


@lru_cache(maxsize=64)
def _tile_layout(rows: int, width: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for([1, 1, rows, width], _DTYPES[dtype])


def _rows(values: torch.Tensor, rows: int) -> Tiling:
    """Float32 values of rows, one after the other, by tiles."""
    return Tiling((values.numel(),), (1,), _tile_of_rows(rows))


@lru_cache(maxsize=64)
def _tile_of_rows(rows: int) -> Tile:
    return Tile((rows,), torch.float32, _ROWS_LAYOUT)


def _fragments(sums: torch.Tensor) -> Tiling:
    """The sums of dq by tiles of 4096 elements, wherever these belong."""
    return Tiling((sums.numel() // 256, 256), (256, 1), _FRAGMENTS)
