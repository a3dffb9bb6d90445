"""Whether elements of a tensor share memory: none of these may be written to."""

from __future__ import annotations

import torch


def overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements share a place, as those of an expanded tensor do, or may do.

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
