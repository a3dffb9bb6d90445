"""The Hopper kernel that makes dK, dV and parts of dQ: what its launch hands it beyond what a call has."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from flashgen.runtime.backward import Incoming
from flashgen.runtime.call import Call
from flashgen.runtime.config import Config
from flashgen.runtime.hopper import even_share

# Q and dO of the heads whose tiles are taken together, in bytes: they should stay in the 50 MB of the L2 cache.
_QUERY_GROUP_BYTES = 16 << 20
_DTYPES = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}

_ROWS_LAYOUT = gl.NVMMASharedLayout(0, 32, rank=1)
_FRAGMENTS_LAYOUT = gl.NVMMASharedLayout(0, 32, rank=2)


def hopper_backward_programs(call: Call, config: Config) -> int:
    """One program for each tile of keys of each head of k and v."""
    s = call.sizes
    return -(-s.kv_len // config.BN) * s.batch * s.kv_heads


def hopper_backward_tiles(
    call: Call, incoming: Incoming, sums: torch.Tensor | None, dk: torch.Tensor, dv: torch.Tensor, config: Config
) -> tuple[Any, ...]:
    """What the kernel reads and writes, as descriptors of tiles: q, d_out, k, v, lse, delta, dq, dk, dv.

    dq is a tensor where threads add to it, None where it is left to another kernel.
    """
    BM, rows = config.BM, config.BN // 2
    width, v_width = block_width(config), v_block_width(call.sizes.v_head_dim)
    return (
        _tile(call.q, BM, width), _tile(incoming.d_out, BM, v_width),
        _tile(call.k, rows, width), _tile(call.v, rows, v_width),
        _rows(incoming.lse if incoming.tile_lse is None else incoming.tile_lse, BM), _rows(incoming.delta, BM),
        _fragments(sums) if sums is not None and config.fuse_dq == 2 else sums,
        _tile(dk, rows, width), _tile(dv, rows, v_width),
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
    name = {torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    rows, width, v_width = config.BN // 2, block_width(config), v_block_width(v_head_dim)
    tiles = {"q": (config.BM, width), "do": (config.BM, v_width), "k": (rows, width), "v": (rows, v_width)}
    tiles |= {"dk": tiles["k"], "dv": tiles["v"]}
    types = {f"{n}_desc": f"tensordesc<{name}{[1, 1, *t]},{_tile_layout(*t, dtype)!r}>" for n, t in tiles.items()}
    types |= dict.fromkeys(("lse_desc", "delta_desc"), f"tensordesc<fp32{[config.BM]},{_ROWS_LAYOUT!r}>")
    return types | {"dq_sums": f"tensordesc<fp32[16, 256],{_FRAGMENTS_LAYOUT!r}>" if config.fuse_dq == 2 else "*fp32"}


def hopper_key_gradients(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the kernel writes dk and dv: it sums over the heads that share keys."""
    s = call.sizes
    shapes = ((s.batch, s.kv_heads, s.kv_len, dim) for dim in (s.head_dim, s.v_head_dim))
    dk, dv = (torch.empty(shape, dtype=call.q.dtype, device=call.q.device) for shape in shapes)
    return dk, dv


def hopper_query_sums(call: Call, incoming: Incoming, config: Config) -> torch.Tensor | None:
    """Where the kernel adds up dq without its scale, if it does: zeros in float32, by tiles of 64 x 64."""
    if not config.fuse_dq:
        return None
    tiles = call.sizes.batch * call.sizes.heads * incoming.num_rows * block_width(config) // 4096
    return torch.zeros((tiles, 64, 64), device=call.q.device)


def key_head_group(call: Call) -> int:
    """How many heads of k and v are taken together: those whose Q and dO fit the L2 cache, in groups of like size."""
    s = call.sizes
    bytes_each = s.q_len * (s.head_dim + s.v_head_dim) * call.q.element_size() * (s.heads // s.kv_heads)
    return even_share(s.batch * s.kv_heads, max(1, _QUERY_GROUP_BYTES // bytes_each))


def _tile(tensor: torch.Tensor, rows: int, width: int) -> TensorDescriptor:
    """A tensor [batch, heads, length, dim] by tiles; what lies beyond its ends reads as zero and is not written."""
    if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        # TMA has no such strides.
        tensor = tensor.contiguous()
    # Of a dimension of size 1 a tensor may have any stride, TMA only a multiple of 16 bytes.
    sizes = list(tensor.shape)
    strides = [stride if size > 1 else width for stride, size in zip(tensor.stride()[:3], sizes[:3], strict=True)]
    shape = [1, 1, rows, width]
    return TensorDescriptor(tensor, sizes, [*strides, 1], shape, _tile_layout(rows, width, tensor.dtype))


@lru_cache(maxsize=64)
def _tile_layout(rows: int, width: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for([1, 1, rows, width], _DTYPES[dtype])


def _rows(values: torch.Tensor, rows: int) -> TensorDescriptor:
    """Float32 values of rows, one after the other, by tiles."""
    return TensorDescriptor(values.view(-1), [values.numel()], [1], [rows], _ROWS_LAYOUT)


def _fragments(sums: torch.Tensor) -> TensorDescriptor:
    """The sums of dq by tiles of 4096 elements, wherever these belong."""
    return TensorDescriptor(sums.view(-1, 256), [sums.numel() // 256, 256], [256, 1], [16, 256], _FRAGMENTS_LAYOUT)
