"""What an object has by its class: methods, properties, slots, and values that all instances share."""

from __future__ import annotations

import enum
import functools
import sys
import sysconfig
import types
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

# Of their modules nothing is captured.
_LIBRARIES = frozenset({
    "torch", "math", "numpy", "operator", "functools", "itertools", "builtins", "typing", "enum", "abc", "types",
    "collections", "dataclasses", "flashgen",
})  # fmt: skip

# What functools caches the results of.
CACHED: Any = type(functools.cache(len))

_STANDARD = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib")} - {None})

# Classes of C whose instances hold nothing but attributes and what is looked at where they are met.
_OPEN = frozenset({
    object, types.SimpleNamespace, types.ModuleType, types.MethodType, functools.partial, CACHED,
    property, classmethod, staticmethod, BaseException, Exception,
})  # fmt: skip

# Of no concern to what an object computes.
_OUTWARD = frozenset({
    "__new__", "__init__", "__post_init__", "__init_subclass__", "__class_getitem__", "__set_name__", "__del__",
    "__repr__", "__str__", "__format__", "__dir__", "__sizeof__", "__hash__", "__setattr__", "__delattr__", "__copy__",
    "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__",
})  # fmt: skip


class ClassPart(NamedTuple):
    """Something of a class, under a name. `kind` is method, static, property, slot or value, or code that is none of
    them; `home` the class that has it; `is_shadowed` that a class before it has the name too.
    """

    name: str
    kind: str
    value: Any
    home: type
    is_shadowed: bool


def captures_nothing(module: str) -> bool:
    """Whether this is the name of a module of which nothing is captured."""
    return module.partition(".")[0] in _LIBRARIES


@functools.cache
def is_of_library(module: str) -> bool:
    """Whether this is the name of a module whose functions and classes do not change: what these read is not looked
    for, while variables of Python's own modules, as `os.environ`, are.
    """
    return captures_nothing(module) or _is_standard(module.partition(".")[0])


def _is_standard(name: str) -> bool:
    """Whether a module is of Python's own library, and no file of a user's that has its name."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return name in sys.stdlib_module_names and (file is None or file.startswith(_STANDARD))


def own_classes(kind: type) -> tuple[type, ...]:
    """A class and those that it inherits from, without those of libraries."""
    return tuple(each for each in kind.__mro__ if not is_of_library(each.__module__))


# Flags of a type: not built into C, as all of Python are, and one that none can change, as none of Python is.
_HEAP, _FINAL = 1 << 9, 1 << 8


def is_sealed(kind: type) -> bool:
    """Whether instances hold what no attribute tells of, as a Decimal does: a class of C not known to be open."""
    made_in_c = (each for each in kind.__mro__ if not each.__flags__ & _HEAP or each.__flags__ & _FINAL)
    return any(each not in _OPEN for each in made_in_c)


def members(kind: type, names: Collection[str], owner: Any = None) -> Iterator[ClassPart]:
    """What a class has under these names; with an `owner`, what this instance of it has. Without one, the functions
    that run when the class is called too.
    """
    if issubclass(kind, enum.Enum):
        return
    classes = own_classes(kind)
    wanted = names if owner is not None else dict.fromkeys([*names, "__new__", "__init__", "__post_init__"])
    for name in wanted:
        is_shadowed = False
        for home in classes:
            if name in home.__dict__:
                found = _member(name, home.__dict__[name], home, owner, is_shadowed)
                # A value is that of the first class; a function may call those behind it.
                if found is not None and not (is_shadowed and found.kind in ("slot", "value")):
                    yield found
                is_shadowed = True
    if owner is None:
        yield from (ClassPart(name, "code", each, kind, False) for name, each in specials(kind))


def _member(name: str, raw: Any, home: type, owner: Any, is_shadowed: bool) -> ClassPart | None:
    if isinstance(raw, types.FunctionType | CACHED):
        return ClassPart(name, "method", raw, home, is_shadowed)
    if isinstance(raw, staticmethod):
        return ClassPart(name, "static", raw.__func__, home, is_shadowed)
    if isinstance(raw, property) and raw.fget is not None:
        return ClassPart(name, "property", raw.fget, home, is_shadowed)
    if isinstance(raw, classmethod):
        return ClassPart(name, "code", raw.__func__, home, is_shadowed)
    if isinstance(raw, functools.cached_property):
        return ClassPart(name, "code", raw.func, home, is_shadowed)
    if isinstance(raw, types.MemberDescriptorType):
        has_value = owner is not None and _is_filled(raw, owner)
        return ClassPart(name, "slot", raw.__get__(owner), home, is_shadowed) if has_value else None
    if isinstance(getattr(type(raw), "__get__", None), types.FunctionType):
        return ClassPart(name, "code", raw, home, is_shadowed)
    return None if hasattr(type(raw), "__get__") else ClassPart(name, "value", raw, home, is_shadowed)


def slots(owner: Any) -> list[str]:
    """The slots of an object that have a value."""
    return [name for name, each in _slots(type(owner)) if _is_filled(each, owner)]


def has_empty_slots(owner: Any) -> bool:
    """Whether a slot of an object has no value, and may get one."""
    return not isinstance(owner, type) and not all(_is_filled(each, owner) for _, each in _slots(type(owner)))


def _slots(kind: type) -> Iterator[tuple[str, types.MemberDescriptorType]]:
    for home in own_classes(kind):
        for name, each in home.__dict__.items():
            if isinstance(each, types.MemberDescriptorType):
                yield name, each


def _is_filled(slot: types.MemberDescriptorType, owner: Any) -> bool:
    try:
        slot.__get__(owner)
    except AttributeError:
        return False
    return True


def attributes_of(owner: Any) -> dict[str, Any] | None:
    """The attributes of an object's own, whatever its class does where one asks for others."""
    try:
        return object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return None


_specials: WeakKeyDictionary[type, tuple[tuple[str, types.FunctionType], ...]] = WeakKeyDictionary()


def specials(kind: type) -> tuple[tuple[str, types.FunctionType], ...]:
    """The methods of instances that no name in code tells of: what runs at a call, an index, a sum."""
    known = _specials.get(kind)
    if known is None:
        found: dict[str, Any] = {}
        for home in own_classes(kind):
            for name, each in home.__dict__.items():
                if name.startswith("__") and name.endswith("__") and name not in _OUTWARD:
                    found.setdefault(name, each)
        known = tuple((name, each) for name, each in found.items() if isinstance(each, types.FunctionType))
        _specials[kind] = known
    return known
