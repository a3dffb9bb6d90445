"""Descriptors of tensors by tiles, made on the host, as kernels that load by TMA take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


@dataclass(frozen=True, eq=False)
class Tile:
    """What a kernel is compiled for of a descriptor: the shape and dtype of a tile and how it lies in shared memory."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: gl.NVMMASharedLayout


class Tiled(TensorDescriptor):
    """A tensor by tiles.

    Its maker sees to what Triton would check: an address and strides of multiples of 16 bytes, the last stride 1, no
    empty dimension. Checking takes longer than all else of a launch, for each descriptor.
    """

    def __init__(self, base: torch.Tensor, shape: Sequence[int], strides: Sequence[int], tile: Tile) -> None:
        self.base = base
        self.shape = shape
        self.strides = strides
        self.block_shape = tile.shape
        self.layout = tile.layout
        self.tile = tile


def tiled_rows(tensor: torch.Tensor, tile: Tile) -> Tiled:
    """What kernel_ready gave, [batch, heads, length, dim], by tiles.

    A tensor that repeats along a dimension is copied: TMA has no such strides.
    """
    strides = _tma_strides(tensor.shape, tensor.stride(), tile.shape[3])
    if 0 in strides:
        tensor = tensor.contiguous()
        strides = _tma_strides(tensor.shape, tensor.stride(), tile.shape[3])
    return Tiled(tensor, tensor.shape, strides, tile)


@lru_cache(maxsize=256)
def _tma_strides(shape: torch.Size, strides: tuple[int, ...], width: int) -> tuple[int, ...]:
    # Of a dimension of size 1 a tensor may have any stride, TMA only a multiple of 16 bytes.
    return *(stride if size > 1 else width for stride, size in zip(strides[:3], shape[:3], strict=True)), 1
