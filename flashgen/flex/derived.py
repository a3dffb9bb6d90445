"""What torch makes of captured values alone: done again at each call, with autograd, and handed to the kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from flashgen.flex.aside import aside


@dataclass(frozen=True)
class Result:
    """In arguments: what is at a place, a captured value or the result of an earlier step."""

    place: int


@dataclass(frozen=True)
class OfCall:
    """In arguments: the device of the call."""


@dataclass(frozen=True, eq=False)
class Step:
    """A function and its arguments."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def taken(self, known: Sequence[Any], device: torch.device | None = None) -> Any:
        """What it gives with what is known."""
        named = {name: filled(each, known, device) for name, each in self.kwargs.items()}
        return self.function(*filled(self.args, known, device), **named)


@dataclass(frozen=True, eq=False)
class Derivation:
    """Steps from captured values, which are at their `places`, to tensors. `results` are where these are: behind the
    captured values there is what each step gives.
    """

    places: tuple[int, ...] = ()
    steps: tuple[Step, ...] = ()
    results: tuple[int, ...] = ()

    def of(self, values: Sequence[Any], device: torch.device) -> list[torch.Tensor]:
        """The tensors, made of the captured values as they are now."""
        known = [values[place] for place in self.places]
        # What a kernel reads has the same dtypes at all calls. There is no autocast of tensors without data.
        may_cast = torch.amp.is_autocast_available(device.type)
        with torch.autocast(device.type, enabled=False) if may_cast else nullcontext():
            for step in self.steps:
                known.append(step.taken(known, device))
        return [_in_rows(known[place]) for place in self.results]


def _in_rows(tensor: torch.Tensor) -> torch.Tensor:
    """As kernels read it, who would copy it and say so."""
    return tensor.contiguous() if tensor.ndim and tensor.stride(-1) != 1 else tensor


def filled(given: Any, known: Sequence[Any], device: torch.device | None = None) -> Any:
    """Arguments, with what is known in the place of what stands for it."""
    if isinstance(given, Result):
        return known[given.place]
    if isinstance(given, OfCall):
        return device
    if isinstance(given, list | tuple):
        return [filled(each, known, device) for each in given]
    return given


def results_in(given: Any) -> Iterator[Result]:
    """The results that arguments have."""
    if isinstance(given, Result):
        yield given
    elif isinstance(given, list | tuple):
        for each in given:
            yield from results_in(each)


class Constant:
    """A tensor that a mod makes of nothing, on each device once."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._there: dict[torch.device, torch.Tensor] = {}

    def __call__(self, device: torch.device) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return self._tensor.to(device)
        if device not in self._there:
            # One made in inference mode, or a fake one, would be of no use outside of that.
            with aside():
                self._there[device] = self._tensor.to(device)
        return self._there[device]


def turned(tensor: torch.Tensor, first: Sequence[int]) -> torch.Tensor:
    """With its first dimensions in another order."""
    return tensor.permute(*first, *range(len(first), tensor.ndim))


@dataclass(frozen=True)
class Written:
    """What an operation that writes leaves in what it writes to, by its kind that writes nothing."""

    function: Callable[..., torch.Tensor]

    def __call__(self, into: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.function(into, *args, **kwargs).to(into.dtype)


@dataclass(frozen=True)
class AtEach:
    """A step on each element along first dimensions, which have `names`; `along` says which of them each of its tensors
    has. A mod reads no element along one of them that the shortest of the tensors lacks.
    """

    step: Step
    names: tuple[int, ...]
    along: tuple[tuple[int, ...], ...]

    def __call__(self, *tensors: torch.Tensor) -> Any:
        def once(*each: torch.Tensor) -> Any:
            return self.step.taken(each)

        mapped: Callable[..., Any] = once
        for name in reversed(self.names):
            mapped = torch.vmap(mapped, in_dims=tuple(0 if name in names else None for names in self.along))
            tensors = self._as_long(name, tensors)
        return mapped(*tensors)

    def _as_long(self, name: int, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The tensors, those along a dimension as long as the shortest of them.

        A part has a gradient that is copied into zeros: of what is as long already none is taken.
        """
        axes = [names.index(name) if name in names else None for names in self.along]
        shortest = min(tensor.shape[axis] for tensor, axis in zip(tensors, axes, strict=True) if axis is not None)
        return tuple(
            tensor if axis is None or tensor.shape[axis] == shortest else tensor.narrow(axis, 0, shortest)
            for tensor, axis in zip(tensors, axes, strict=True)
        )
