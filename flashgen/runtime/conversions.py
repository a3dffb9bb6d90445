"""What a caller may pass in another form than kernels read, where nothing is lost that counts."""

from __future__ import annotations

import torch

_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def as_dtype(tensor: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """An input in the dtype that the spec names, if it converts; else as it is, for `check_input` to refuse.

    Floats become other floats, and their gradients come back in the caller's dtype. Integers and bools become integers,
    what does not fit the nearest that does: an index beyond a tensor reads its edge either way. Integers become bools,
    true where they are not 0. Floats never become integers or bools, nor these floats.
    """
    if tensor is None or not isinstance(tensor, torch.Tensor) or tensor.dtype == dtype:
        return tensor
    if dtype.is_floating_point:
        return tensor.to(dtype) if tensor.dtype.is_floating_point else tensor
    if tensor.dtype == torch.bool or (tensor.dtype in _INTEGERS and dtype == torch.bool):
        return tensor.to(dtype)
    if tensor.dtype not in _INTEGERS:
        return tensor
    given, wanted = torch.iinfo(tensor.dtype), torch.iinfo(dtype)
    if given.min < wanted.min or given.max > wanted.max:
        tensor = tensor.clamp(max(given.min, wanted.min), min(given.max, wanted.max))
    return tensor.to(dtype)


def over_batch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """k and v for each batch element of q: those of batch 1 serve all, without a copy."""
    batch = q.shape[0] if q.ndim else 1
    return _over(k, batch), _over(v, batch)


def _over(tensor: torch.Tensor, batch: int) -> torch.Tensor:
    serves_all = tensor.ndim == 4 and tensor.shape[0] == 1 != batch
    return tensor.expand(batch, -1, -1, -1) if serves_all else tensor
