"""torch.autocast, as torch's own scaled_dot_product_attention takes it."""

from __future__ import annotations

import torch


def autocast(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v in autocast's dtype where it is on for their device; float64 and integers stay what they are."""
    device = "cuda" if q.is_cuda else q.device.type
    dtype = _dtype(device)
    if dtype is None:
        return q, k, v
    return _cast(q, device, dtype), _cast(k, device, dtype), _cast(v, device, dtype)


def autocast_beside_cache(q: torch.Tensor, k_cache: torch.Tensor) -> torch.Tensor:
    """q in autocast's dtype where the cache has that too, or 8 bits: a cache is too much to be cast in each call."""
    device = q.device.type
    dtype = _dtype(device)
    if dtype is None or (k_cache.dtype.itemsize > 1 and k_cache.dtype != dtype):
        return q
    return _cast(q, device, dtype)


def _dtype(device: str) -> torch.dtype | None:
    """Autocast's for a type of device, None where it is off."""
    on = device in ("cuda", "cpu") and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if on else None


def _cast(tensor: torch.Tensor, device: str, dtype: torch.dtype) -> torch.Tensor:
    fits = tensor.is_floating_point() and tensor.dtype != torch.float64 and tensor.device.type == device
    return tensor.to(dtype) if fits else tensor
