"""What a mod captures: the tensors and numbers in its closure, its globals, its defaults, and in what it calls.

`capture` is asked at every call, so it only reads: one flat key, which says what a trace depends on, and the values.
What nothing can stand in for is in the key itself, by value.
"""

from __future__ import annotations

import enum
import functools
import types
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from flashgen.errors import ModError
from flashgen.flex.classes import attributes_of, has_empty_slots, is_sealed, own_classes
from flashgen.flex.parts import (
    Part,
    begin_of,
    called,
    function_of,
    globals_of,
    identity,
    is_code_of_library,
    is_library,
    parts,
)
from flashgen.flex.places import places
from flashgen.flex.vocabulary import Vocabulary
from flashgen.runtime.dispatch import asks_for_gradient

# Values that a trace takes as they are.
_PLAIN = frozenset({bool, str, bytes, complex, type(None), type(...), torch.dtype, torch.device, slice, range})
# What holds variables, which may be assigned to.
_VARIABLES = frozenset({types.CellType, dict})
_NEVER_CHANGE = (tuple, frozenset, types.FunctionType, types.MethodType, functools.partial)
# What a key has at most, lest a call takes long to find out what it is.
_MOST = 100_000
# What a variable has that is not there.
ABSENT: Any = object()
_INT32 = range(-(2**31), 2**31)

TensorKind = tuple[torch.dtype, int, bool]


@dataclass
class Captured:
    """`key` has the codes, kinds and whatever else a trace depends on, flat; `values` the tensors and numbers.

    `names` are those that the code reads which may run. `kept` are objects that the key names by their ids: whoever
    keeps the key keeps them. `met` says which of the values or objects is in a slot, a place in memory. `variables` are
    all that may be assigned to: a cell and None, or what has a `get`, as a mapping has, and a name in it, what is there
    now, ABSENT for nothing, and whether the key has it; `lasting` says that nothing else can change.
    """

    names: Vocabulary
    key: list[Any] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    codes: dict[int, types.CodeType] = field(default_factory=dict)
    met: dict[Any, int] = field(default_factory=dict)
    variables: list[tuple[Any, str | None, Any, bool]] = field(default_factory=list)
    lasting: bool = True
    # The names of the parts that are being read.
    within: list[str] = field(default_factory=list)


class _TooLarge(Exception):
    """There is more to a mod than a key may have."""


class _AttributesOf:
    """The code and the defaults of a function, which does not live on for it."""

    def __init__(self, function: types.FunctionType) -> None:
        self._function = weakref.ref(function)

    def get(self, name: str, default: Any) -> Any:
        return getattr(self._function(), name, default)


# By the codes of mods, the codes that these led to, and the names in them.
_vocabularies: dict[tuple[int, ...], tuple[frozenset[int], Vocabulary]] = {}


def capture(*mods: Any) -> Captured:
    """What these mods capture; one that is None captures nothing."""
    roots = tuple(map(_code_of, mods))
    codes, names = _vocabularies.get(roots, (frozenset(), Vocabulary()))
    while True:
        # Threads that read mods of one code do not write to one.
        found = Captured(names.with_codes(()))
        for mod in mods:
            _read_mod(mod, found)
        if found.codes.keys() <= codes and not found.names.has_grown:
            return found
        # An attribute may be read by what is called, and may itself be called.
        codes, names = codes | found.codes.keys(), found.names.with_codes(found.codes.values())
        _vocabularies[roots] = codes, names


def _read_mod(mod: Any, found: Captured) -> None:
    try:
        _read(called(mod), None, found, as_is=False)
    except (_TooLarge, RecursionError):
        way = ".".join(filter(None, found.within[:3]))
        many = f"more than {_MOST} values, or one too deep within others, by way of {way}"
        message = f"it captures {many}; expected what it reads alone, many numbers as a tensor"
        raise ModError(begin_of(mod), message) from None


def _code_of(mod: Any) -> int:
    function = function_of(mod)
    return 0 if function is None else id(function.__code__)


def _read(value: Any, slot: Any, found: Captured, as_is: bool) -> None:
    kind = type(value)
    key = found.key
    if kind is int or kind is float:
        _read_number(value, kind, slot, found, as_is)
    elif kind in _PLAIN:
        # A slice has no hash.
        key += (kind, repr(value) if kind is slice else value)
    elif isinstance(value, torch.Tensor):
        if as_is:
            key += (value.dtype, value.shape)
        # The same tensor in two places is one input.
        elif _is_new(id(value), found, len(found.values)):
            key += kind_of(value)
            found.values.append(value)
    elif not is_library(value) and _is_new(_slot(value, as_is), found, len(found.met)):
        _read_parts(value, kind, found, as_is)


def _slot(value: Any, as_is: bool) -> Any:
    return ("as it is", identity(value)) if as_is else identity(value)


def _read_number(value: int | float, kind: type, slot: Any, found: Captured, as_is: bool) -> None:
    if as_is or not is_number(value):
        found.key += (kind, repr(value))
    elif _is_new(slot, found, len(found.values)):
        # Whether an index made of it may count from the end depends on the sign of an integer.
        found.key.append(kind if kind is float or value >= 0 else "negative")
        found.values.append(value)


def _read_parts(value: Any, kind: type, found: Captured, as_is: bool) -> None:
    key = found.key
    if kind is types.FunctionType:
        # A library's closure reads the objects in it, as torch's mods over pages read their tables.
        if value.__closure__ or not is_code_of_library(value):
            found.codes[id(value.__code__)] = value.__code__
        found.kept.append(value.__code__)
        key.append(id(value.__code__))
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            if (given := getattr(value, name)) is not None:
                found.variables.append((_AttributesOf(value), name, given, True))
        scope = value.__globals__
        # One that comes to be there is read in the place of what Python has of this name.
        found.variables += [(scope, name, ABSENT, True) for name in globals_of(value) if name not in scope]
    else:
        key += _said_of(value, kind, found)
    if kind is types.MethodType:
        _meet_by(value.__func__, value.__self__, found)
    if found.names.has_any:
        key += [each for name, given in _untold(value, found.names) for each in (name, type(given), repr(given))]
        found.lasting = False
    found.lasting = found.lasting and not has_empty_slots(value)
    if found.lasting:
        found.variables += [(home, name, home.get(name, ABSENT), True) for home, name in places(value, found.names)]
    for part in parts(value, found.names):
        _meet(part, value, found)
        in_key = as_is or part.as_is
        if type(part.holder) in _VARIABLES:
            found.variables.append((part.holder, part.key, part.value, in_key))
        elif part.holder is not None and not isinstance(value, _NEVER_CHANGE):
            found.lasting = False
        key.append(part.name)
        if len(key) > _MOST:
            raise _TooLarge
        found.within.append(part.name)
        _read(part.value, part.slot, found, in_key)
        found.within.pop()
    key.append("end")


def _untold(value: Any, names: Vocabulary) -> Iterator[tuple[str, Any]]:
    """Attributes whose names the code does not tell, as far as a trace takes them as they are."""
    homes = [attributes_of(value) or {}, *(each.__dict__ for each in own_classes(type(value)))]
    if isinstance(value, type):
        homes = [each.__dict__ for each in own_classes(value)]
    told = names.of(value)
    for home in homes:
        yield from ((name, each) for name, each in [*home.items()] if name not in told and is_plain(each))


def _meet(part: Part, owner: Any, found: Captured) -> None:
    """Tell the vocabulary who reads what is in a part."""
    how, _ = part.step
    if how != "self":
        found.names.meet(part.value)
    # Code of a class runs on the object that has it.
    is_of_class = how in ("property", "special") or (part.holder is None and part.as_is)
    if is_of_class and not isinstance(owner, type):
        _meet_by(part.value, owner, found)


def _meet_by(code: Any, owner: Any, found: Captured) -> None:
    if isinstance(code, types.FunctionType):
        found.names.meet_as_self(owner, code.__code__)
    else:
        found.names.meet(owner)


def _said_of(value: Any, kind: type, found: Captured) -> tuple[Any, ...]:
    """What a key says of a value besides what is in it."""
    if isinstance(value, tuple | list | dict | set | frozenset | deque):
        # What is added to it later is in none of its parts.
        found.lasting = found.lasting and isinstance(value, _NEVER_CHANGE)
        return kind, len(value)
    if isinstance(value, int | float | str | bytes):
        return kind, repr(value)
    if hasattr(kind, "tobytes"):
        found.lasting = False
        return kind, str(getattr(value, "dtype", kind)), getattr(value, "shape", ()), value.tobytes()
    is_open = kind is types.MethodType or attributes_of(value) is not None or own_classes(kind)
    if is_open and not isinstance(value, type | enum.Enum) and not is_sealed(kind):
        return (kind,)
    found.kept.append(value)
    return (id(value),)


def _is_new(slot: Any, found: Captured, place: int) -> bool:
    """Whether this is the first time in a slot; otherwise the key says which it is the same as."""
    if slot in found.met:
        found.key += ("same", found.met[slot])
        return False
    found.met[slot] = place
    return True


def kind_of(tensor: torch.Tensor) -> TensorKind:
    """What a trace depends on of a tensor that something stands in for."""
    return tensor.dtype, tensor.ndim, asks_for_gradient(tensor)


def is_number(value: Any) -> bool:
    """Whether it may become an argument of a kernel: an int of 32 bits, or a finite float."""
    if type(value) is int:
        return value in _INT32
    return type(value) is float and value - value == 0.0


def is_plain(value: Any) -> bool:
    """Whether a trace takes a value as it is, and another one for another."""
    return type(value) in _PLAIN or type(value) in (int, float)
