"""What torch asks for before its dispatcher is asked."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Clamping(TorchFunctionMode):
    """`x.clamp(0, n)` where n is a tensor, and torch would ask for its value."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        limits = [*args[1:], *kwargs.values()]
        if func in _CLAMPS and any(isinstance(each, torch.Tensor) for each in limits):
            args = (args[0], *map(_as_tensor, args[1:])) if args else ()
            kwargs = {key: _as_tensor(each) for key, each in kwargs.items()}
        return func(*args, **kwargs)


_CLAMPS = frozenset({torch.clamp, torch.Tensor.clamp, torch.clip, torch.Tensor.clip})


def _as_tensor(limit: Any) -> Any:
    return torch.tensor(limit) if isinstance(limit, int | float) else limit
