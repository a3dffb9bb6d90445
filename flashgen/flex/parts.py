"""The values inside a value that a mod may read, and how one gets to each.

What code reads can be told from its names: the globals, and of an object the attributes, of these names.
"""

from __future__ import annotations

import enum
import functools
import itertools
import threading
import types
import weakref
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch

from flashgen.errors import Location
from flashgen.flex.classes import (
    CACHED,
    ClassPart,
    attributes_of,
    captures_nothing,
    is_of_library,
    members,
    own_classes,
    specials,
)
from flashgen.flex.codes import global_names
from flashgen.flex.vocabulary import Vocabulary

# How one gets from a value to one inside it, and the name or place there.
Step = tuple[str, Any]
Way = tuple[Step, ...]


class Part(NamedTuple):
    """A value inside another, in a cell, or in a `holder` under a `key`; without a holder where it never changes.

    `step` is how one gets there, for `reading.follow`. `as_is`: nothing can stand in for it.
    """

    name: str
    value: Any
    step: Step
    holder: Any = None
    key: Any = None
    as_is: bool = False

    @property
    def slot(self) -> Any:
        """What is the same for the same variable."""
        return id(self.holder), self.key


def called(mod: Any) -> Any:
    """What runs when a mod is called: of an object with `__call__`, and of a module's `forward`, the bound method."""
    if mod is None or isinstance(mod, types.FunctionType | types.MethodType | functools.partial):
        return mod
    name = "forward" if isinstance(mod, torch.nn.Module) else "__call__"
    method = getattr(type(mod), name, None)
    return types.MethodType(method, mod) if isinstance(method, types.FunctionType) else mod


def function_of(mod: Any) -> types.FunctionType | None:
    """The function that runs when a mod is called, if it is one of Python."""
    while isinstance(mod, functools.partial):
        mod = mod.func
    mod = called(mod)
    mod = mod.__func__ if isinstance(mod, types.MethodType) else mod
    return mod if isinstance(mod, types.FunctionType) else None


def begin_of(mod: Any) -> Location:
    """Where a mod begins."""
    function = function_of(mod)
    if function is None:
        return Location(repr(mod))
    return Location(function.__code__.co_filename, function.__code__.co_firstlineno)


def name_of(mod: Any) -> str:
    """What a mod is called: a function's name, or that of an object's class."""
    while isinstance(mod, functools.partial):
        mod = mod.func
    is_named = isinstance(mod, types.FunctionType | types.MethodType | types.BuiltinFunctionType)
    return mod.__name__ if is_named else type(mod).__name__


def is_library(value: Any) -> bool:
    """Whether it is a module of which nothing is captured."""
    return isinstance(value, types.ModuleType) and captures_nothing(value.__name__)


def identity(value: Any) -> Any:
    """The slot of what is no tensor and no number. A bound method is another object each time one asks for it."""
    if isinstance(value, types.MethodType):
        return id(value.__func__), id(value.__self__)
    return id(value)


def parts(value: Any, names: Vocabulary) -> Iterator[Part]:
    """What a trace may read of a captured value; of an object, those attributes that have one of the `names`."""
    if isinstance(value, types.FunctionType):
        yield from parts_of_function(value)
        yield from attributes_of_function(value, names)
    elif isinstance(value, types.MethodType):
        yield Part("", value.__func__, ("function", value.__func__.__name__))
        yield Part("", value.__self__, ("self", None))
    elif isinstance(value, functools.partial):
        yield Part("", called(value.func), ("func", None))
        for place, (name, each) in enumerate(zip(_parameters(value), value.args, strict=False)):
            yield Part(name, each, ("argument", place), value.args, place)
        for name, each in value.keywords.items():
            yield Part(name, each, ("keyword", name), value.keywords, name)
    elif isinstance(value, CACHED):
        yield Part("", value.__wrapped__, ("attribute", "__wrapped__"))
    elif isinstance(value, tuple | list | set | frozenset | deque):
        as_is = not isinstance(value, tuple | list)
        yield from (Part(f"_{place}", each, ("item", place), value, place, as_is) for place, each in enumerate(value))
    elif isinstance(value, dict):
        yield from (Part(f"_{name}", each, ("item", name), value, name) for name, each in list(value.items()))
    elif isinstance(value, type):
        yield from (_of_class(each) for each in members(value, names.names))
    elif isinstance(value, weakref.ref | ContextVar | threading.local):
        yield Part("", _found_by(value), ("found", None), value, as_is=True)
    elif not isinstance(value, enum.Enum):
        yield from _attributes(value, names)


def _found_by(value: weakref.ref | ContextVar | threading.local) -> Any:
    """What is now behind an object that says something else at another time or in another thread."""
    if isinstance(value, threading.local):
        return value.__dict__
    return value.get(None) if isinstance(value, ContextVar) else value()


def _parameters(given: functools.partial) -> Iterator[str]:
    """What a partial's arguments are called, by the function if it is one of Python."""
    ran = called(given.func)
    names: tuple[str, ...] = ()
    if isinstance(ran, types.FunctionType | types.MethodType):
        code = ran.__code__
        names = code.co_varnames[isinstance(ran, types.MethodType) : code.co_argcount]
    return (names[place] if place < len(names) else f"_argument{place}" for place in itertools.count())


def parts_of_function(function: types.FunctionType) -> Iterator[Part]:
    """Its free variables, and unless it is of a library its defaults and the globals that it reads."""
    for place, (name, cell) in enumerate(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)):
        if has_content(cell):
            yield Part(name, cell.cell_contents, ("cell", place), cell)
    if is_code_of_library(function):
        return
    for place, (name, each) in enumerate(defaults(function).items()):
        yield Part(name, each, ("default", place), function, name)
    keywords = function.__kwdefaults__ or {}
    for name, each in keywords.items():
        yield Part(name, each, ("keyword_default", name), keywords, name)
    scope = function.__globals__
    for name in globals_of(function):
        if name in scope and not is_library(scope[name]):
            yield Part(name, scope[name], ("global", name), scope, name)


def attributes_of_function(function: types.FunctionType, names: Vocabulary) -> Iterator[Part]:
    """What was assigned to attributes of a function that have one of the `names`."""
    own = function.__dict__
    yield from (Part(name, own[name], ("attribute", name), own, name) for name in names.names if name in own)


def globals_of(function: types.FunctionType) -> tuple[str, ...]:
    """The names of globals that it reads, also of those that are not there; those of libraries do not change."""
    return () if is_code_of_library(function) else global_names(function.__code__)


def is_code_of_library(function: types.FunctionType) -> bool:
    return is_of_library(str(function.__globals__.get("__name__", "")))


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


def homes_and_names(owner: Any, vocabulary: Vocabulary) -> tuple[list[dict[str, Any]], Collection[str]]:
    """Where an object has attributes of its own, and the names of those that may be read."""
    own, names = attributes_of(owner), vocabulary.of(owner)
    own = {} if own is None else own
    is_module = isinstance(owner, torch.nn.Module)
    homes = [own, *(own[each] for each in ("_modules", "_buffers", "_parameters") if is_module)]
    if is_module and is_read_whole(owner):
        # Its code is torch's, which is not read through: it may read all that it has.
        public = (name for home in homes for name in home if not name.startswith("_"))
        names = dict.fromkeys([*names, *public])
    elif is_read_whole(owner):
        names = dict.fromkeys([*names, *own])
    return homes, names


def is_read_whole(owner: Any) -> bool:
    """Whether code that is not read through may read all attributes of an object."""
    if isinstance(owner, torch.nn.Module):
        return any(map(_is_torchs, type(owner).__mro__))
    return isinstance(owner, Mapping | Sequence | Set) and any(map(_holds_items, type(owner).__mro__))


def _attributes(owner: Any, vocabulary: Vocabulary) -> Iterator[Part]:
    """The attributes of an object that code with these names may read; methods are bound."""
    homes, names = homes_and_names(owner, vocabulary)
    own, classes = homes[0], own_classes(type(owner))
    for name in names:
        home = next((home for home in homes if name in home), None)
        if home is not None:
            yield Part(name, home[name], ("attribute", name), home, name)
        elif classes:
            yield from (_inherited(owner, each) for each in members(type(owner), (name,), owner))
    if "__wrapped__" in own:
        yield Part("", own["__wrapped__"], ("attribute", "__wrapped__"), as_is=True)
    if classes:
        is_self_alone = vocabulary.is_self_alone(owner)
        for name, each in specials(type(owner)):
            if not is_self_alone or name in _OF_ATTRIBUTES:
                yield Part(name, each, ("special", name))
        if not is_self_alone and not {"type", "__class__"}.isdisjoint(names):
            yield Part("", type(owner), ("attribute", "__class__"), as_is=True)


# What runs where an attribute is read.
_OF_ATTRIBUTES = ("__getattr__", "__getattribute__")


def _is_torchs(kind: type) -> bool:
    """Whether it is a kind of module of torch's own."""
    return kind is not torch.nn.Module and kind.__module__.partition(".")[0] == "torch"


def _holds_items(kind: type) -> bool:
    """Whether it is a class of a library, as UserDict, that says where items are, as abstract ones do not."""
    return is_of_library(kind.__module__) and kind.__module__ not in ("builtins", "abc", "typing", "collections.abc")


def _inherited(owner: Any, member: ClassPart) -> Part:
    """What an object has by its class. A method is bound, unless nothing can stand in for it."""
    name, kind, value, home, is_shadowed = member
    as_is = is_shadowed or attributes_of(owner) is None
    if kind == "slot":
        return Part(name, value, ("attribute", name), owner, name)
    if kind == "property":
        return Part(name, value, ("property", name), as_is=is_shadowed)
    if kind == "method" and not as_is:
        return Part(name, types.MethodType(value, owner), ("attribute", name))
    if kind == "value":
        return Part(name, value, ("attribute", name), home, name, as_is)
    return Part(name, value, ("attribute", name), as_is=as_is or kind == "code")


def _of_class(member: ClassPart) -> Part:
    home = member.home if member.kind == "value" else None
    return Part(member.name, member.value, ("attribute", member.name), home, member.name, as_is=True)
