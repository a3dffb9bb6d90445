"""The same mod with other values for those that it captures. What it captures is met in the order of `capture`."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from flashgen.flex.captures import (
    Part,
    Way,
    called,
    defaults,
    has_content,
    identity,
    is_library,
    is_number,
    is_plain,
    parts,
    parts_of_function,
)

# Given the name of a captured value, the value, its slot and the way to it from the mod: what stands in for it.
StandIn = Callable[[str, Any, Any, Way], Any]


class Rebuilding:
    """Rebuilds mods, one after the other; what they share stays shared."""

    def __init__(self, stand_in: StandIn) -> None:
        self._stand_in = stand_in
        self._made: dict[Any, Any] = {}
        self._cells: dict[int, types.CellType] = {}
        # Bound methods would be gone before others take their ids.
        self._kept: list[Any] = []

    def mod(self, mod: Any) -> Any:
        """The mod over again."""
        return self._value(called(mod), "", (), None, ())

    def _value(self, value: Any, name: str, names: Sequence[str], slot: Any, way: Way) -> Any:
        if isinstance(value, torch.Tensor):
            return self._stand_in(name, value, id(value), way)
        if is_number(value):
            return self._stand_in(name, value, slot, way)
        if is_plain(value) or is_library(value):
            return value
        own = identity(value, names)
        if own not in self._made:
            self._kept.append(value)
            self._made[own] = value
            self._made[own] = self._again(value, name, names, own, way)
        return self._made[own]

    def _again(self, value: Any, name: str, names: Sequence[str], own: Any, way: Way) -> Any:
        if isinstance(value, types.FunctionType):
            return self._function(value, own, way)
        inner = [(part, self._part(part, name, way)) for part in parts(value, names)]
        new: list[Any] = [each for _, each in inner]
        if all(each is part.value for part, each in inner):
            return value
        if isinstance(value, types.MethodType):
            return types.MethodType(new[0], new[1])
        if isinstance(value, functools.partial):
            count = 1 + len(value.args)
            keywords = dict(zip(value.keywords, new[count:], strict=True))
            return functools.partial(new[0], *new[1:count], **keywords)
        if isinstance(value, tuple | list):
            kind: Any = type(value)
            return kind(*new) if hasattr(value, "_fields") else kind(new)
        if isinstance(value, dict):
            return dict(zip(value, new, strict=True))
        return _with_attributes(value, {part.name: each for part, each in inner})

    def _part(self, part: Part, owner: str, way: Way) -> Any:
        name = f"{owner}{part.name}" if part.name.startswith("_") else part.name or owner
        return self._value(part.value, name, part.names, part.slot, (*way, part.step))

    def _function(self, function: types.FunctionType, own: Any, way: Way) -> types.FunctionType:
        closure, scope = function.__closure__ or (), dict(function.__globals__)
        cells = tuple(self._cells.setdefault(id(cell), types.CellType()) for cell in closure)
        new = types.FunctionType(function.__code__, scope, function.__name__, closure=cells or None)
        # Functions that call each other meet here.
        self._made[own] = new
        found = {
            (id(part.holder), part.key): self._part(part, function.__name__, way)
            for part in parts_of_function(function)
        }
        for cell, old in zip(cells, closure, strict=True):
            if has_content(old):
                cell.cell_contents = found[id(old), None]
        owner = id(function)
        new.__defaults__ = tuple(found[owner, name] for name in defaults(function)) or None
        new.__kwdefaults__ = {name: found[owner, name] for name in function.__kwdefaults__ or {}}
        scope.update({name: each for (holder, name), each in found.items() if holder == id(function.__globals__)})
        return new


def _with_attributes(owner: Any, new: Mapping[str, Any]) -> Any:
    """A copy of an object whose attributes are others; a method that is rebuilt becomes one of its attributes."""
    if isinstance(owner, types.ModuleType):
        copy: Any = types.ModuleType(owner.__name__)
        copy.__dict__.update({**owner.__dict__, **new})
        return copy
    if not hasattr(owner, "__dict__"):
        return owner
    copy = object.__new__(type(owner))
    copy.__dict__.update(owner.__dict__)
    held = ("_modules", "_buffers", "_parameters") if isinstance(owner, torch.nn.Module) else ()
    homes = [copy.__dict__.setdefault(name, {}) for name in held]
    copy.__dict__.update({name: dict(home) for name, home in zip(held, homes, strict=True)})
    for name, each in new.items():
        homes = [copy.__dict__[kind] for kind in held if name in copy.__dict__[kind]]
        (homes[0] if homes else copy.__dict__)[name] = each
    return copy
