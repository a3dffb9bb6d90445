"""What an operation is made of, where the table of operations does not have it: by torch, by whoever registered it, or
here, where torch has nothing, or parts that the language lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from flashgen.flex.values import NotTraced


def whole_of(func: Any) -> Callable[..., Any]:
    """A function that does what an operation of torch does, by others. NotTraced where there is none."""
    whole = (
        _OWN.get(func)
        or _OWN.get(func.overloadpacket)
        or torch._decomp.decomposition_table.get(func)
        or _implementation(func)
    )
    if whole is None:
        raise NotTraced(f"{func}, which the language of specs does not have")
    return whole


def _implementation(func: Any) -> Callable[..., Any] | None:
    """The function behind an operation that is not torch's own."""
    if func.namespace in ("aten", "prims"):
        return None
    for key in ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CPU"):
        if func.has_kernel_for_dispatch_key(getattr(torch._C.DispatchKey, key)):
            return lambda *args, **kwargs: func._op_dk(getattr(torch._C.DispatchKey, key), *args, **kwargs)
    return None


def _number(tensor: Any, operation: str) -> Any:
    if isinstance(tensor, torch.Tensor) and tensor.ndim:
        raise NotTraced(f"{operation} of {tensor.ndim} dimensions; expected a number")
    return tensor


def _bucketize(
    x: torch.Tensor, boundaries: torch.Tensor, *, out_int32: bool = False, right: bool = False
) -> torch.Tensor:
    """How many of the boundaries, which ascend, are below x; with `right`, or at it. NaN is beyond all of them."""
    number = _number(x, "bucketize")
    passed = ~(boundaries > number) if right else ~(boundaries >= number)
    return passed.sum(dtype=torch.int32 if out_int32 else torch.int64)


def _searchsorted(
    boundaries: torch.Tensor, x: torch.Tensor, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    if sorter is not None:
        raise NotTraced("searchsorted with a sorter; expected boundaries that ascend")
    return _bucketize(x, boundaries, out_int32=out_int32, right=right or side == "right")


def _isin(x: Any, tests: Any, *, assume_unique: bool = False, invert: bool = False) -> torch.Tensor:
    found = (tests == _number(x, "isin")).any()
    return torch.logical_not(found) if invert else found


def _round(x: torch.Tensor, *, decimals: int = 0) -> torch.Tensor:
    """The nearest integer; the even one of two that are as near."""
    if decimals:
        raise NotTraced(f"round(decimals={decimals}); expected round() of a product")
    if not x.dtype.is_floating_point:
        return x
    below = torch.floor(x)
    rest = x - below
    nearest = torch.where(rest > 0.5, below + 1, below)
    return torch.where(rest == 0.5, below + torch.remainder(below, 2), nearest)


def _hardtanh(x: torch.Tensor, low: float = -1, high: float = 1) -> torch.Tensor:
    """A clamp whose derivative at its limits is 0."""
    if not x.dtype.is_floating_point:
        return torch.clamp(x, int(low), int(high))
    return torch.where(x <= low, low, torch.where(x >= high, high, x))


def _logaddexp(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    greater = torch.maximum(x, y)
    return torch.where(torch.isinf(greater), greater, greater + torch.log1p(torch.exp(-torch.abs(x - y))))


def _embedding(
    weight: torch.Tensor, index: torch.Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:  # fmt: skip
    if padding_idx != -1 or scale_grad_by_freq:
        raise NotTraced("embedding with padding_idx or scale_grad_by_freq, of other gradients; expected weight[index]")
    return torch.ops.aten.index.Tensor(weight, [index])


_aten = torch.ops.aten
_OWN: Mapping[Any, Callable[..., Any]] = {
    _aten.bucketize: _bucketize,
    _aten.searchsorted: _searchsorted,
    _aten.isin: _isin,
    _aten.round: _round,
    _aten.hardtanh: _hardtanh,
    _aten.logaddexp: _logaddexp,
    _aten.embedding: _embedding,
    _aten.max.default: torch.amax,
    _aten.min.default: torch.amin,
    _aten.erfc: lambda x: 1 - torch.erf(x),
    _aten.hypot: lambda x, y: torch.sqrt(x * x + y * y),
}
