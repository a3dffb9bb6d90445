"""How tensors lie: which kernels read as they are, copies of the others, and which may be written to."""

from __future__ import annotations

import warnings
from functools import cache, lru_cache

import torch


def kernel_ready(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """q, k or v with a contiguous last dimension and, where tiles are loaded by TMA, aligned to 16 bytes.

    The interpreter asks for what TMA does.
    """
    tensor = contiguous_last(name, tensor)
    if ready_strides(tensor) is not None:
        return tensor
    say_once(name, f"{name} is not aligned to 16 bytes in each row; it is copied on each call")
    return aligned_copy(tensor)


def aligned_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of [batch, heads, length, dim] that repeats nothing, aligned to 16 bytes in each row."""
    batch, heads, length, dim = tensor.shape
    padded = tensor.new_empty(batch, heads, length, aligned_width(dim, tensor.dtype))
    return padded[..., :dim].copy_(tensor)


def aligned_width(dim: int, dtype: torch.dtype) -> int:
    """So many elements as a row of a dimension takes where each begins at a multiple of 16 bytes."""
    unit = 16 // dtype.itemsize
    return -(-dim // unit) * unit


def ready_strides(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """What row_strides gives for q, k, v or the like where a kernel reads it as it is, else None."""
    return _ready_strides(tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.data_ptr() % 16)


@lru_cache(maxsize=256)
def _ready_strides(
    shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype, device: torch.device, misaligned: int
) -> tuple[int, ...] | None:  # fmt: skip
    fitting = _row_strides(shape, strides)
    if shape[3] > 1 and strides[3] != 1:
        return None
    if device.type == "cuda" and not _loads_by_tma(device.index):
        return fitting
    ready = not misaligned and all(s % (16 // dtype.itemsize) == 0 for s in fitting) and fitting[2] > 0
    return fitting if ready else None


def row_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides of batch, heads and length in elements; for a dimension of size 1, where none is used, one that fits."""
    return _row_strides(tensor.shape, tensor.stride())


@lru_cache(maxsize=256)
def _row_strides(shape: torch.Size, strides: tuple[int, ...]) -> tuple[int, ...]:
    fitting = -(-shape[3] // 8) * 8
    return tuple(stride if size > 1 else fitting for stride, size in zip(strides[:3], shape[:3], strict=True))


def is_contiguous_last(tensor: torch.Tensor) -> bool:
    """Whether what lies along the last dimension has no gaps: one element has none, whatever its stride."""
    return not tensor.ndim or tensor.shape[-1] <= 1 or tensor.stride(-1) == 1


def overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements share a place, as those of an expanded tensor do, or may do: such is not to be written to.

    None do where each step is longer than all the shorter ones reach together. So it is in whatever transposing,
    slicing, splitting and selecting make of a tensor without gaps. Steps that miss each other in another way, as 3 and
    2 in a tensor of 2 by 3, count as sharing: to tell is a problem of whole numbers that no layout in use asks about.
    """
    if not tensor.numel():
        return False
    dims = list(zip(tensor.shape, tensor.stride(), strict=True))
    return any(size > 1 and stride <= _reach(dims, place) for place, (size, stride) in enumerate(dims))


def _reach(dims: list[tuple[int, int]], place: int) -> int:
    """How far the dimensions whose steps are no longer than that of this one reach together."""
    step = dims[place][1]
    return sum((size - 1) * stride for other, (size, stride) in enumerate(dims) if other != place and stride <= step)


def contiguous_last(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or where it is not contiguous in its last dimension a copy that is."""
    if not is_contiguous_last(tensor):
        say_once(name, f"{name} is not contiguous in its last dimension; it is copied on each call")
        return tensor.contiguous()
    return tensor


@cache
def say_once(name: str, message: str) -> None:
    """Warn of the tensor of this name in these words, once in a process."""
    warnings.warn(message, stacklevel=2)


@cache
def _loads_by_tma(index: int) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(index)[0] >= 9
