"""The same mod with other values for those that it captures. What it captures is met in the order of `capture`."""

from __future__ import annotations

import copy
import enum
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from flashgen.flex.captures import is_number, is_plain
from flashgen.flex.classes import CACHED, attributes_of, is_sealed, own_classes, slots
from flashgen.flex.parts import (
    Part,
    Step,
    Way,
    called,
    defaults,
    has_content,
    identity,
    is_code_of_library,
    is_library,
    parts,
)
from flashgen.flex.vocabulary import Vocabulary

# Given the name of a captured value, the value, its slot and the way to it from the mod: what stands in for it.
StandIn = Callable[[str, Any, Any, Way], Any]
# Given a captured value that a trace takes as it is, and the way to it.
Constant = Callable[[Any, Way], None]


class Rebuilding:
    """Rebuilds mods, one after the other; what they share stays shared. `names` are those of what they capture."""

    def __init__(self, stand_in: StandIn, constant: Constant, names: Vocabulary) -> None:
        self._stand_in, self._constant, self._names = stand_in, constant, names
        self._made: dict[Any, Any] = {}
        self._cells: dict[int, types.CellType] = {}
        # Bound methods would be gone before others take their ids.
        self._kept: list[Any] = []

    def mod(self, mod: Any) -> Any:
        """The mod over again."""
        return self._value(called(mod), "", None, ())

    def _value(self, value: Any, name: str, slot: Any, way: Way) -> Any:
        if isinstance(value, torch.Tensor):
            return self._stand_in(name, value, id(value), way)
        if is_number(value):
            return self._stand_in(name, value, slot, way)
        if is_plain(value) or isinstance(value, enum.Enum):
            self._constant(value, way)
            return value
        if is_library(value):
            return value
        if isinstance(value, CACHED):
            # It would keep what is traced, and give what nothing stands in for.
            return self._value(value.__wrapped__, name, slot, (*way, ("attribute", "__wrapped__")))
        own = identity(value)
        if own not in self._made:
            self._kept.append(value)
            self._made[own] = value
            self._made[own] = self._again(value, name, own, way)
        return self._made[own]

    def _again(self, value: Any, name: str, own: Any, way: Way) -> Any:
        if isinstance(value, types.FunctionType):
            return self._function(value, own, way)
        inner = [part for part in parts(value, self._names) if not part.as_is]
        if not inner and not _is_written_to(value):
            return value
        if isinstance(value, types.MethodType | functools.partial | tuple | list | dict):
            return _with_items(value, [self._part(part, name, way) for part in inner])
        # Its methods are bound to the copy, which is therefore there first.
        again = self._made[own] = _copy(value)
        _fill(again, [(part.step, self._part(part, name, way)) for part in inner])
        return again

    def _part(self, part: Part, owner: str, way: Way) -> Any:
        name = f"{owner}{part.name}" if part.name.startswith("_") else part.name or owner
        return self._value(part.value, name, part.slot, (*way, part.step))

    def _function(self, function: types.FunctionType, own: Any, way: Way) -> types.FunctionType:
        if is_code_of_library(function) and not function.__closure__:
            return function
        closure, scope = function.__closure__ or (), dict(function.__globals__)
        cells = tuple(self._cells.setdefault(id(cell), types.CellType()) for cell in closure)
        new = types.FunctionType(function.__code__, scope, function.__name__, closure=cells or None)
        # Functions that call each other meet here.
        self._made[own] = new
        found = {
            (id(part.holder), part.key): self._part(part, function.__name__, way)
            for part in parts(function, self._names)
        }
        for cell, old in zip(cells, closure, strict=True):
            if has_content(old):
                cell.cell_contents = found[id(old), None]
        keywords = function.__kwdefaults__ or {}
        # Those of a library's are not looked at.
        given = defaults(function).items()
        new.__defaults__ = tuple(found.get((id(function), name), each) for name, each in given) or None
        new.__kwdefaults__ = {name: found.get((id(keywords), name), each) for name, each in keywords.items()}
        scope.update({name: each for (holder, name), each in found.items() if holder == id(function.__globals__)})
        own = {name: each for (holder, name), each in found.items() if holder == id(function.__dict__)}
        new.__dict__.update({**function.__dict__, **own})
        return new


def _with_items(value: Any, new: list[Any]) -> Any:
    """The value with other parts; whatever else a kind of list or mapping has stays."""
    if isinstance(value, types.MethodType):
        return types.MethodType(new[0], new[1])
    if isinstance(value, functools.partial):
        count = 1 + len(value.args)
        return functools.partial(new[0], *new[1:count], **dict(zip(value.keywords, new[count:], strict=True)))
    if isinstance(value, tuple):
        kind: Any = type(value)
        return kind(*new) if hasattr(value, "_fields") else kind(new)
    again = copy.copy(value)
    for place, each in zip(value if isinstance(value, dict) else range(len(value)), new, strict=True):
        again[place] = each
    return again


def _is_written_to(value: Any) -> bool:
    """Whether a mod may keep in it what it makes, as a cached_property does: what is traced is for no one else."""
    if isinstance(value, list | dict | types.SimpleNamespace):
        return True
    kind = type(value)
    is_open = attributes_of(value) is not None and bool(own_classes(kind)) and not is_sealed(kind)
    return is_open and not isinstance(value, type | enum.Enum)


_REGISTERED = ("_modules", "_buffers", "_parameters")


def _copy(owner: Any) -> Any:
    """Another object with the same attributes."""
    if isinstance(owner, types.ModuleType):
        again: Any = types.ModuleType(owner.__name__)
    else:
        try:
            again = object.__new__(type(owner))
        except TypeError:
            return copy.copy(owner)
    for name in slots(owner):
        object.__setattr__(again, name, getattr(owner, name))
    if attributes_of(owner) is not None:
        again.__dict__.update(owner.__dict__)
    if isinstance(owner, torch.nn.Module):
        again.__dict__.update({name: dict(owner.__dict__[name]) for name in _REGISTERED})
    return again


def _end_nothing(self: Any) -> None:
    return None


def _fill(again: Any, new: Sequence[tuple[Step, Any]]) -> None:
    """Put other parts into a copy; what stands in its class goes into a class of its own."""
    # What the copied object has to end when it is gone is not the copy's to end.
    own: dict[str, Any] = {"__del__": _end_nothing} if hasattr(type(again), "__del__") else {}
    for (how, name), each in new:
        if how == "special":
            own[name] = each
        elif how == "property":
            own[name] = property(each)
        elif name in slots(again):
            object.__setattr__(again, name, each)
        else:
            homes = [again.__dict__[kind] for kind in _REGISTERED if isinstance(again, torch.nn.Module)]
            next((home for home in homes if name in home), again.__dict__)[name] = each
    if own:
        kind = type(again)
        make: Any = type(kind)
        special = make(kind.__name__, (kind,), {"__slots__": (), "__module__": kind.__module__, **own})
        # Its own way to set attributes may refuse.
        object.__setattr__(again, "__class__", special)
