"""Descriptors of tensors by tiles, made on the host, as kernels that load by TMA take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


@dataclass(frozen=True, eq=False)
class Tile:
    """What a kernel is compiled for of a descriptor: the shape and dtype of a tile and how it lies in shared memory."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: gl.NVMMASharedLayout


class Tiled(TensorDescriptor):  # type: ignore[misc]
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
