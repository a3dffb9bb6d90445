"""What a mod captures: the tensors and numbers in its closure, its globals, its defaults, and in what it calls.

`capture` is asked at every call, so it only reads: one flat key, which says what a trace depends on, and the values.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

# Their functions and constants do not change; what these read is not looked for.
_LIBRARIES = frozenset({"torch", "math", "numpy", "operator", "functools", "itertools", "builtins", "typing", "enum"})
# Values that a trace takes as they are.
_PLAIN = frozenset({bool, str, bytes, complex, type(None), type(...), torch.dtype, torch.device, slice})
# What holds variables, which may be assigned to.
_VARIABLES = frozenset({types.CellType, dict})
_INT32 = range(-(2**31), 2**31)

# How one gets from a value to one inside it, and the name or place there.
Step = tuple[str, Any]
Way = tuple[Step, ...]


@dataclass
class Captured:
    """`key` has the codes, kinds and whatever else a trace depends on, flat; `values` the tensors and numbers.

    `kept` are objects that the key names by their ids: whoever keeps the key keeps them. `met` says which of the values
    or objects is in a slot, a place in memory. `variables` are all that may be assigned to: a cell and None, or a
    mapping and a name of it, and what is there now; `lasting` says that nothing else can change.
    """

    key: list[Any] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    met: dict[Any, int] = field(default_factory=dict)
    variables: list[tuple[Any, str | None, Any]] = field(default_factory=list)
    lasting: bool = True


def capture(*mods: Any) -> Captured:
    """What these mods capture; one that is None captures nothing."""
    found = Captured()
    for mod in mods:
        _read(called(mod), None, (), found)
    return found


def called(mod: Any) -> Any:
    """What runs when a mod is called: of an object with `__call__`, and of a module's `forward`, the bound method."""
    if mod is None or isinstance(mod, types.FunctionType | types.MethodType | functools.partial):
        return mod
    name = "forward" if isinstance(mod, torch.nn.Module) else "__call__"
    method = getattr(type(mod), name, None)
    return types.MethodType(method, mod) if isinstance(method, types.FunctionType) else mod


def _read(value: Any, slot: Any, names: Sequence[str], found: Captured) -> None:
    kind = type(value)
    key = found.key
    if kind is int or kind is float:
        _read_number(value, kind, slot, found)
    elif kind in _PLAIN:
        key += (kind, value)
    elif isinstance(value, torch.Tensor):
        # The same tensor in two places is one input.
        if _is_new(id(value), found, len(found.values)):
            key += (value.dtype, value.ndim, value.requires_grad)
            found.values.append(value)
    elif not is_library(value) and _is_new(identity(value, names), found, len(found.met)):
        if kind is types.FunctionType:
            found.kept.append(value.__code__)
            key.append(id(value.__code__))
        elif kind is dict:
            found.lasting = False
            key += (dict, *value)
        elif kind is tuple or kind is list:
            found.lasting = found.lasting and kind is tuple
            key += (kind, len(value))
        elif hasattr(value, "__dict__"):
            key.append(kind)
        else:
            found.kept.append(value)
            key.append(id(value))
        for _, inner, inner_names, _, holder, name in parts(value, names):
            if type(holder) in _VARIABLES:
                found.variables.append((holder, name, inner))
            elif isinstance(holder, type):
                found.lasting = False
            _read(inner, (id(holder), name), inner_names, found)


def _read_number(value: int | float, kind: type, slot: Any, found: Captured) -> None:
    if not is_number(value):
        found.key += (kind, repr(value))
    elif _is_new(slot, found, len(found.values)):
        # Whether an index made of it may count from the end depends on the sign of an integer.
        found.key.append(kind if kind is float or value >= 0 else "negative")
        found.values.append(value)


def _is_new(slot: Any, found: Captured, place: int) -> bool:
    """Whether this is the first time in a slot; otherwise the key says which it is the same as."""
    if slot in found.met:
        found.key += ("same", found.met[slot])
        return False
    found.met[slot] = place
    return True


def is_number(value: Any) -> bool:
    """Whether it may become an argument of a kernel: an int of 32 bits, or a finite float."""
    if type(value) is int:
        return value in _INT32
    return type(value) is float and value - value == 0.0


def is_plain(value: Any) -> bool:
    """Whether a trace takes a value as it is, and another one for another."""
    return type(value) in _PLAIN or type(value) in (int, float)


def is_library(value: Any) -> bool:
    """Whether it is a module of which nothing is captured."""
    return isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] in _LIBRARIES


def identity(value: Any, names: Sequence[str]) -> Any:
    """The slot of what is no tensor and no number. A bound method is another object each time one asks for it."""
    if isinstance(value, types.MethodType):
        return id(value.__func__), id(value.__self__)
    if isinstance(value, types.FunctionType):
        return id(value)
    return id(value), names


class Part(NamedTuple):
    """A value inside another, in a cell, or in a `holder` under a `key`; without a holder where it never changes.

    `names` are those of the code that reads it, `step` is how one gets there, for `reading.follow`.
    """

    name: str
    value: Any
    names: Sequence[str]
    step: Step
    holder: Any = None
    key: Any = None

    @property
    def slot(self) -> Any:
        """The same for the same variable."""
        return id(self.holder), self.key


def parts(value: Any, names: Sequence[str]) -> Iterator[Part]:
    """What a trace may read of a captured value; of an object, those attributes that the code has `names` of."""
    if isinstance(value, types.FunctionType):
        yield from parts_of_function(value)
    elif isinstance(value, types.MethodType):
        own, name = value.__self__, value.__func__.__name__
        yield Part("", value.__func__, names, ("function", name))
        yield Part("", own, (*names, *read_names(value.__func__.__code__)), ("self", None))
    elif isinstance(value, functools.partial):
        yield Part("", called(value.func), names, ("func", None))
        for place, each in enumerate(value.args):
            yield Part(f"_argument{place}", each, names, ("argument", place), value.args, place)
        for name, each in value.keywords.items():
            yield Part(name, each, names, ("keyword", name), value.keywords, name)
    elif isinstance(value, tuple | list):
        yield from (Part(f"_{place}", each, names, ("item", place), value, place) for place, each in enumerate(value))
    elif isinstance(value, dict):
        yield from (Part(f"_{name}", each, names, ("item", name), value, name) for name, each in value.items())
    elif not isinstance(value, type):
        yield from attributes(value, names)


def parts_of_function(function: types.FunctionType) -> Iterator[Part]:
    """Its free variables, its defaults, and the globals that it reads."""
    code = function.__code__
    names = read_names(code)
    for place, (name, cell) in enumerate(zip(code.co_freevars, function.__closure__ or (), strict=True)):
        if has_content(cell):
            yield Part(name, cell.cell_contents, names, ("cell", place), cell)
    if function.__defaults__:
        for place, (name, each) in enumerate(defaults(function).items()):
            yield Part(name, each, names, ("default", place), function, name)
    for name, each in (function.__kwdefaults__ or {}).items():
        yield Part(name, each, names, ("keyword_default", name), function, name)
    scope = function.__globals__
    if str(scope.get("__name__", "")).partition(".")[0] not in _LIBRARIES:
        for name in names:
            if name in scope and not is_library(scope[name]):
                yield Part(name, scope[name], names, ("global", name), scope, name)


def defaults(function: types.FunctionType) -> dict[str, Any]:
    """The defaults of positional parameters, by their names."""
    given = function.__defaults__ or ()
    code = function.__code__
    return dict(zip(code.co_varnames[code.co_argcount - len(given) : code.co_argcount], given, strict=True))


def has_content(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


# By the id of a code, which is kept with its names.
_names: dict[int, tuple[types.CodeType, tuple[str, ...]]] = {}


def read_names(code: types.CodeType) -> tuple[str, ...]:
    """The names of globals and attributes that a code reads, those of functions inside it too."""
    known = _names.get(id(code))
    if known is None:
        inner = [read_names(each) for each in code.co_consts if isinstance(each, types.CodeType)]
        known = code, tuple(dict.fromkeys([*code.co_names, *(name for names in inner for name in names)]))
        _names[id(code)] = known
    return known[1]


def attributes(owner: Any, names: Sequence[str]) -> Iterator[Part]:
    """The attributes of an object that code with these names may read; methods are bound."""
    own = getattr(owner, "__dict__", {})
    is_module = isinstance(owner, torch.nn.Module)
    homes = [own, *(own[each] for each in ("_modules", "_buffers", "_parameters") if is_module)]
    inherits = not isinstance(owner, types.ModuleType) and type(owner).__module__.partition(".")[0] not in _LIBRARIES
    for name in names:
        home = next((home for home in homes if name in home), None)
        if home is not None:
            yield Part(name, home[name], names, ("attribute", name), home, name)
        elif inherits:
            yield from _inherited(owner, name, names)


def _inherited(owner: Any, name: str, names: Sequence[str]) -> Iterator[Part]:
    value = getattr(type(owner), name, None)
    if isinstance(value, types.FunctionType):
        if value.__module__.partition(".")[0] not in _LIBRARIES:
            yield Part(name, types.MethodType(value, owner), names, ("attribute", name))
    elif type(value) in (int, float) or isinstance(value, torch.Tensor):
        yield Part(name, value, names, ("attribute", name), type(owner), name)
