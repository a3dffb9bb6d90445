"""torch.autocast, as torch's own scaled_dot_product_attention takes it."""

from __future__ import annotations

import torch


def autocast(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v in autocast's dtype where it is on for their device; float64 and integers stay what they are."""
    device = "cuda" if q.is_cuda else q.device.type
    if device not in ("cuda", "cpu") or not torch.is_autocast_enabled(device):
        return q, k, v
    dtype = torch.get_autocast_dtype(device)
    return _cast(q, device, dtype), _cast(k, device, dtype), _cast(v, device, dtype)


def _cast(tensor: torch.Tensor, device: str, dtype: torch.dtype) -> torch.Tensor:
    fits = tensor.is_floating_point() and tensor.dtype != torch.float64 and tensor.device.type == device
    return tensor.to(dtype) if fits else tensor
