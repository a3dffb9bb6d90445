"""Eager arithmetic that rounds where a 16-bit kernel may: `reference` itself computes in float32 whatever the dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_PRODUCTS = frozenset({torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__})
_TANH = frozenset({torch.tanh, torch.Tensor.tanh})


class RoundedProducts(TorchFunctionMode):
    """Within it, matrix products of float32 tensors run in another dtype, their gradients too."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func not in _PRODUCTS or any(operand.dtype != torch.float32 for operand in args):
            return func(*args, **(kwargs or {}))
        left, right = (operand.to(self._dtype) for operand in args)
        return torch.matmul(left, right).to(torch.float32)


class FastFunctions(TorchFunctionMode):
    """Within it, what a kernel on 16-bit inputs may take from a fast form is as good as that: tanh to 11 bits."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        return result.to(torch.float16).to(result.dtype) if func in _TANH else result
