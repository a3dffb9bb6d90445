"""Which of our operators torch is asked for, and with what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Watch(TorchDispatchMode):
    """Keeps the calls of our operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "flashgen":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


def detached(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """The same arguments, of which no tensor has a gradient."""
    return tuple(each.detach() if isinstance(each, torch.Tensor) else each for each in arguments)
