"""Sums of float32 numbers that come out the same in every order.

A float32 is an integer of 24 bits times a power of two. It is cut into digits of 24 bits at fixed places, and the
digits of all addends are added up as 64-bit integers, place by place: integer addition commutes, so the bits of the
sum do not depend on which program came first. That is the idea of Kulisch's accumulator ("Computer Arithmetic and
Validity", chapter 8), with room for 2**39 addends instead of carries.
"""

from __future__ import annotations

import torch

# Float32 reaches from 2**-149 to 2**128: twelve digits. One more place counts infinities and NaN.
PLACES = 13
_LOWEST = -149


def input_sums(tensor: torch.Tensor, exact: bool) -> torch.Tensor:
    """Zeros for a kernel to add the gradient of an input to: float32 [*shape], or digits, int64 [*shape, PLACES]."""
    shape, dtype = ((*tensor.shape, PLACES), torch.int64) if exact else (tensor.shape, torch.float32)
    return torch.zeros(shape, dtype=dtype, device=tensor.device)


def input_gradient(tensor: torch.Tensor, *sums: torch.Tensor) -> torch.Tensor:
    """The gradient of an input, in its dtype, from what was added at each place where it is read."""
    parts = [rounded(each) if each.dtype == torch.int64 else each for each in sums]
    return sum(parts[1:], parts[0]).to(tensor.dtype) if parts else torch.zeros_like(tensor)


def rounded(sums: torch.Tensor) -> torch.Tensor:
    """The sums that the digits, int64 [..., PLACES], stand for: float32 [...]; NaN where an addend was not finite."""
    places = torch.arange(PLACES - 1, device=sums.device, dtype=torch.float64)
    values = (sums[..., :-1] * torch.exp2(24 * places + _LOWEST)).sum(-1)
    return values.masked_fill(sums[..., -1] != 0, torch.nan).to(torch.float32)
