"""Captured tensors that a mod has not read yet: views of them, and their elements by index."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from flashgen.flex.known import Known
from flashgen.flex.memory import Memory
from flashgen.flex.operations import TURNED
from flashgen.flex.results import result_of
from flashgen.flex.values import Elements, NotTraced, holds
from flashgen.lang.nodes import Type


class CapturedElements:
    """What operations make of the elements of captured tensors."""

    def __init__(self, known: Known, memory: Memory) -> None:
        self._known, self._memory = known, memory

    def viewed(self, operation: str, func: Any, args: tuple, kwargs: dict[str, Any]) -> torch.Tensor:
        """A view of one: turned, or the same elements."""
        tensor = args[0]
        result = result_of(self._known, func, args, kwargs)
        elements = self._known.meaning(tensor)
        assert isinstance(elements, Elements)
        if operation in TURNED:
            elements = replace(elements, free=TURNED[operation](elements.free, *args[1:]))
        elif result.shape != tensor.shape or not holds(result.dtype, tensor.dtype) or _rounds(tensor, result):
            raise NotTraced(f"{func} of a captured tensor; expected it as it is, indexed")
        self._memory.share_view(func, args, result)
        self._known.know(result, replace(elements, element=result.dtype))
        return result

    def indexed(self, operation: str, tensor: torch.Tensor, *rest: Any) -> torch.Tensor:
        """One element, or a row of them."""
        elements = self._known.meaning(tensor)
        indices = [*[None] * (rest[0] % tensor.ndim), rest[1]] if operation == "select" else rest[0]
        if not isinstance(elements, Elements) and self._known.origin(tensor) is not None and tensor.ndim:
            elements = self._known.elements_of(tensor)
        if not isinstance(elements, Elements):
            raise NotTraced("an index of what is no captured tensor")
        values = {number: self._known.value(each) for number, each in enumerate(indices) if each is not None}
        if any(each.type is not Type.INT for each in values.values()):
            raise NotTraced("an index that is no integer")
        left = [size for number, size in enumerate(tensor.shape) if number not in values]
        rows = [each.shape[0] for each in indices if isinstance(each, torch.Tensor) and each.ndim]
        if rows and left:
            raise NotTraced(f"{elements.name} at a row of indices with {len(left)} dimensions left; expected none")
        self._known.sized |= {elements.name} if rows else set()
        result = torch.zeros((), dtype=tensor.dtype).expand(rows[:1] or left)
        taken = elements.at({number: self._known.place(elements, number, each) for number, each in values.items()})
        if operation == "select":
            self._memory.share(result)
            self._memory.share(tensor)
        self._known.know(result, self._known.element(taken), None if rows else self._known.whence(tensor, indices))
        return result


def _rounds(tensor: torch.Tensor, result: torch.Tensor) -> bool:
    """Whether a cast rounds what float32 holds."""
    return result.dtype != tensor.dtype and result.dtype.is_floating_point and result.dtype.itemsize < 4
