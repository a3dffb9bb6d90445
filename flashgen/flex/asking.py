"""What a mod asks of tensors before torch's dispatcher is asked."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CLAMPS = frozenset({torch.clamp, torch.Tensor.clamp, torch.clip, torch.Tensor.clip})
_Tensor: Any = torch.Tensor
_SIZES = frozenset({
    _Tensor.shape.__get__, torch.Tensor.size, torch.Tensor.__len__, torch.Tensor.numel, torch.numel,
    torch.Tensor.nelement,
})  # fmt: skip


class Asking(TorchFunctionMode):
    """Takes note of the tensors whose sizes are asked for: the trace holds for these sizes alone.

    And `x.clamp(0, n)`, where n is a tensor: torch would ask for its value.
    """

    def __init__(self) -> None:
        super().__init__()
        # By their ids.
        self.sized: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func in _SIZES:
            self.sized.add(id(args[0]))
        if func in _CLAMPS and any(isinstance(each, torch.Tensor) for each in [*args[1:], *kwargs.values()]):
            args = (args[0], *map(_as_tensor, args[1:])) if args else ()
            kwargs = {key: _as_tensor(each) for key, each in kwargs.items()}
        return func(*args, **kwargs)


def _as_tensor(limit: Any) -> Any:
    return torch.tensor(limit) if isinstance(limit, int | float) else limit
