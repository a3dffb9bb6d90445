"""Descriptors of tensors by tiles, made on the host, as kernels that load by TMA take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from triton.experimental.gluon import language as gl

from flashgen.runtime.gluon import TensorDescriptor
from flashgen.runtime.strides import aligned_copy, aligned_width


@dataclass(frozen=True, eq=False)
class Tile:
    """What a kernel is compiled for of a descriptor: the shape and dtype of a tile and how it lies in shared memory."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: gl.NVMMASharedLayout


class HasAddress(Protocol):
    """A tensor, as far as a launch asks for it."""

    def data_ptr(self) -> int: ...


class Tiled(TensorDescriptor):
    """A tensor by tiles.

    Its maker sees to what Triton would check: an address and strides of multiples of 16 bytes, the last stride 1, no
    empty dimension. Checking takes longer than all else of a launch, for each descriptor.
    """

    def __init__(self, base: HasAddress, shape: Sequence[int], strides: Sequence[int], tile: Tile) -> None:
        self.base = base
        self.shape = shape
        self.strides = strides
        self.block_shape = tile.shape
        self.layout = tile.layout
        self.tile = tile

    def at(self, base: HasAddress) -> Tiled:
        """Another tensor of the same layout by the same tiles."""
        return Tiled(base, self.shape, self.strides, self.tile)


@dataclass(frozen=True, eq=False)
class Tiling:
    """How tensors of one layout are seen by tiles. `copies`: TMA has no such strides."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    tile: Tile
    copies: bool = False

    def of(self, tensor: torch.Tensor) -> Tiled:
        """A tensor of this layout, or else its copy, by tiles."""
        return Tiled(aligned_copy(tensor) if self.copies else tensor, self.shape, self.strides, self.tile)


@lru_cache(maxsize=256)
def rows_tiling(shape: torch.Size, strides: tuple[int, ...], tile: Tile) -> Tiling:
    """For what kernel_ready gave, [batch, heads, length, dim]; what repeats along a dimension is copied."""
    # Of a dimension of size 1 a tensor may have any stride, TMA only a multiple of 16 bytes.
    fitting = [stride if size > 1 else tile.shape[3] for stride, size in zip(strides[:3], shape[:3], strict=True)]
    copies = 0 in fitting
    if copies:
        _, heads, length, dim = shape
        width = aligned_width(dim, tile.dtype)
        fitting = [heads * length * width, length * width, width]
        fitting = [stride if size > 1 else tile.shape[3] for stride, size in zip(fitting, shape[:3], strict=True)]
    return Tiling(tuple(shape), (*fitting, 1), tile, copies)
