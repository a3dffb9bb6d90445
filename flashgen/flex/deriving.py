"""Inputs that no mod captures: what torch makes of captured values alone, where a mod reads its elements."""

from __future__ import annotations

from collections.abc import Collection

import torch

from flashgen.flex.names import free_name
from flashgen.flex.tape import Origin, Tape
from flashgen.flex.values import AXIS, Input, NotTraced, dimension


class Deriving:
    """The derived inputs of both mods, by their names, and whence they come."""

    def __init__(self, inputs: Collection[Input], numbers: Collection[str]) -> None:
        self.tape = Tape()
        self.inputs: dict[str, Input] = {}
        self.origins: dict[str, Origin] = {}
        self._names: dict[int, str] = {}
        self._taken = {AXIS, *numbers}.union(*({each.name, *each.sizes} for each in inputs))

    def input(self, origin: Origin, tensor: torch.Tensor) -> Input:
        """The input that has a tensor of this origin among its elements."""
        if tensor.dtype.is_complex:
            raise NotTraced(f"{self.tape.text(origin)}, which is complex; expected real numbers")
        name = self._names.get(origin.place)
        if name is None:
            name = self._names[origin.place] = self._named(self.tape.wanted_name(origin))
            rank = len(origin.at) + tensor.ndim
            sizes = tuple(self._named(dimension(name, axis, rank), is_argument=False) for axis in range(rank))
            stand_in = torch.zeros((), dtype=tensor.dtype).expand([1] * rank)
            self.inputs[name] = Input(name, stand_in, self.tape.is_learned(origin), sizes)
            self.origins[name] = Origin(origin.place)
        return self.inputs[name]

    def text(self, name: str) -> str:
        """How an input comes of what is captured."""
        return self.tape.text(self.origins[name])

    def _named(self, wanted: str, is_argument: bool = True) -> str:
        name = free_name(wanted, self._taken, is_argument)
        self._taken.add(name)
        return name
