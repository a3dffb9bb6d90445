"""Which tensors of a mod are one in memory: what is done to one in place is done to the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch


class Memory:
    """Tensors by their ids. Whoever tells of them keeps them, lest others take their ids.

    `shared` has memory that is not a mod's own, or that has parts: what is captured, views, and what they are of.
    """

    def __init__(self, shared: Iterable[torch.Tensor]) -> None:
        self._shared = {id(each) for each in shared}
        self._ones: dict[int, list[torch.Tensor]] = {}

    def share(self, tensor: torch.Tensor) -> None:
        self._shared.add(id(tensor))

    def share_view(self, func: Any, args: tuple, result: torch.Tensor) -> None:
        """Where an operation gives a view, that and its first argument have parts in common."""
        if func._schema.returns[0].alias_info is not None and result is not args[0]:
            self.share(result)
            self.share(args[0])

    def is_shared(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._shared

    def join(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        """From now on the two are one in memory."""
        if self.is_shared(tensor):
            self.share(other)
        ones = self._ones.setdefault(id(tensor), [tensor])
        ones.append(other)
        self._ones[id(other)] = ones

    def ones(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        """All that this one is in memory."""
        return self._ones.get(id(tensor), [tensor])
