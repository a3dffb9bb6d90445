"""What the warp-specialized kernels for Hopper, in Gluon, have in common."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from triton.experimental.gluon import language as gl

from flashgen.runtime.descriptors import Tile, Tiling, rows_tiling
from flashgen.runtime.device.sm90.tiles import far, far_rows
from flashgen.runtime.kernels.kernel import Values
from flashgen.runtime.widths import padded

HOPPER = "sm_90"
# The largest tile of a product has so many columns.
WIDEST_HEAD = 256
# Warps of a consumer.
CONSUMER_TILES: Mapping[str, Values] = {"num_warps": (4,), "num_stages": tuple(range(1, 9))}
# Room for barriers, in bytes.
BARRIERS = 1024
_GLUON_DTYPES = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}


def never_on(capability: str, dtype: str, head_dim: int, v_head_dim: int) -> str:
    """Why none of them serves such calls; "" where one may."""
    if capability != HOPPER:
        return f"it runs on {HOPPER}, this is {capability or 'an unknown GPU'}"
    widest = max(head_dim, v_head_dim)
    if widest > WIDEST_HEAD:
        return f"it takes head dimensions up to {WIDEST_HEAD}, this is {widest}"
    return "it takes float16 and bfloat16, this is float32" if dtype == "float32" else ""


def product_width(dim: int) -> int:
    """A head dimension as products take it: a power of two, or from 65 on the sum of two, such as 96 = 64 + 32."""
    width = padded(dim)
    half = width // 2
    return width if width <= 64 else min(width, half + padded(dim - half))


def consumer_options(consumers: int) -> dict[str, Any]:
    """Launch options: the registers of a thread before the consumers take what the producer does not need."""
    return {"num_warps": 4, "maxnreg": 168 if consumers == 2 else 128}


def even_share(heads: int, at_once: int) -> int:
    """How many heads each group has where at most `at_once` go together and groups are of like size."""
    groups = -(-heads // at_once)
    return -(-heads // groups)


@lru_cache(maxsize=64)
def multiprocessors(gpu: int) -> int:
    """How many multiprocessors a GPU has."""
    return torch.cuda.get_device_properties(gpu).multi_processor_count


def tiling(tensor: torch.Tensor, rows: int, width: int, packed: bool = False) -> Tiling:
    """A tensor [batch, heads, length, dim] by tiles; what lies beyond its ends reads as zero and is not written.

    Of `packed` sequences, [1, heads, total, dim], each has an end: see device/sm90/sequences.py.
    """
    of_rows = rows_tiling(tensor.shape, tensor.stride(), _tile_of(rows, width, tensor.dtype))
    return _ragged(of_rows, _tile_of(rows, width, tensor.dtype, True)) if packed else of_rows


def _ragged(of_rows: Tiling, tile: Tile) -> Tiling:
    _, heads, _, dim = of_rows.shape
    _, along_heads, along_rows, _ = of_rows.strides
    shape = (far(), far(), heads, far_rows(), dim)
    return Tiling(shape, ((1 << 34) - along_rows, along_rows, along_heads, along_rows, 1), tile, of_rows.copies)


@lru_cache(maxsize=64)
def _tile_of(rows: int, width: int, dtype: torch.dtype, packed: bool = False) -> Tile:
    return Tile(tuple(_block(rows, width, packed)), dtype, _tile_layout(rows, width, dtype, packed))


def tile_type(dtype: torch.dtype, rows: int, width: int, packed: bool = False) -> str:
    """The type of such a descriptor, as Triton writes it."""
    name = {torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    return f"tensordesc<{name}{_block(rows, width, packed)},{_tile_layout(rows, width, dtype, packed)!r}>"


@lru_cache(maxsize=64)
def _tile_layout(rows: int, width: int, dtype: torch.dtype, packed: bool) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for(_block(rows, width, packed), _GLUON_DTYPES[dtype])


def _block(rows: int, width: int, packed: bool) -> list[int]:
    return [1, 1, 1, rows, width] if packed else [1, 1, rows, width]
