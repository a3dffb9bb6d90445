"""What a mod asks of tensors before torch's dispatcher is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CLAMPS = frozenset({torch.clamp, torch.Tensor.clamp, torch.clip, torch.Tensor.clip})
_Tensor: Any = torch.Tensor
_SIZES = frozenset({
    _Tensor.shape.__get__, torch.Tensor.size, torch.Tensor.__len__, torch.Tensor.numel, torch.numel,
    torch.Tensor.nelement,
})  # fmt: skip
# What comes out of these is out of torch's hands.
_VALUES = frozenset({
    torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__dlpack__, torch.Tensor.__repr__,
    torch.Tensor.__format__, torch.Tensor.__deepcopy__, torch.Tensor.__reduce_ex__, torch.Tensor.data_ptr,
    torch.Tensor.untyped_storage, torch.Tensor.storage,
})  # fmt: skip
_turned = torch._C._set_grad_enabled
_WHOLE = slice(None)


class Asking(TorchFunctionMode):
    """Takes note of the tensors whose sizes are asked for: the trace holds for these sizes alone.

    `leave` is told of those whose values leave torch, as `tolist()` takes them; `turn` where gradients are turned on or
    off by the mod, and not by torch within a function of its own. And in `x.clamp(0, n)` and `x[:, n]`, where n is a
    tensor, torch would ask for its value.
    """

    def __init__(self, leave: Callable[[torch.Tensor], None], turn: Callable[[bool], None]) -> None:
        super().__init__()
        self._leave, self._turn = leave, turn
        # By their ids.
        self.sized: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func in _SIZES:
            self.sized.add(id(args[0]))
        if func is _turned:
            self._turn(args[0])
        if func in _VALUES:
            self._leave(args[0])
        if func is torch.Tensor.__getitem__ and (taken := _taken_apart(*args)) is not None:
            part, places = taken
            return torch.ops.aten.index(args[0] if part is None else args[0][part], places)
        if func in _CLAMPS and any(isinstance(each, torch.Tensor) for each in [*args[1:], *kwargs.values()]):
            args = (args[0], *map(_as_tensor, args[1:])) if args else ()
            kwargs = {key: _as_tensor(each) for key, each in kwargs.items()}
        return func(*args, **kwargs)


def _as_tensor(limit: Any) -> Any:
    return torch.tensor(limit) if isinstance(limit, int | float) else limit


def _taken_apart(tensor: torch.Tensor, index: Any) -> tuple[Any, list[torch.Tensor | None]] | None:
    """Slices and new dimensions, None where there are none, and then the index of each dimension, None where all of it
    is taken. None where no tensor is an index, or one that is no number.
    """
    given = list(index) if isinstance(index, tuple) else [index]
    if any(each is Ellipsis for each in given):
        at = next(place for place, each in enumerate(given) if each is Ellipsis)
        axes = sum(each is not None for each in given) - 1
        given[at : at + 1] = [_WHOLE] * (tensor.ndim - axes)
    numbers = [isinstance(each, torch.Tensor) and not each.ndim and each.dtype != torch.bool for each in given]
    is_place = [number or type(each) is int for each, number in zip(given, numbers, strict=True)]
    others = [each for each, place in zip(given, is_place, strict=True) if not place]
    if not any(numbers) or not all(each is None or isinstance(each, slice) for each in others):
        return None
    part = tuple(_WHOLE if place else each for each, place in zip(given, is_place, strict=True))
    places = [torch.as_tensor(each) if place else None for each, place in zip(given, is_place, strict=True)]
    return None if all(each == _WHOLE for each in part) else part, places
