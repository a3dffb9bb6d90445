"""What code reads, as far as one can tell from it: globals and attributes, by their names."""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Iterator
from typing import TypeVar

_Found = TypeVar("_Found")
# By the id of a code, which is kept with what was found of it.
_Known = dict[int, tuple[types.CodeType, _Found]]
_names: _Known[tuple[str, ...]] = {}
_globals: _Known[tuple[str, ...]] = {}
_of_self: _Known[tuple[str, ...] | None] = {}
_any_names: _Known[bool] = {}

_OF_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_OF_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_OF_VARIABLES = ("FAST", "DEREF", "CLOSURE")
# By which code comes to variables without their names in it.
_BY_TEXT = frozenset({"globals", "locals", "vars", "eval", "exec"})
# By which it comes to attributes so, and by which it does where their names are no constants.
_BY_ANY_NAME = frozenset({"vars", "dir", "__dict__", "attrgetter"})
_BY_GIVEN_NAME = frozenset({"getattr", "hasattr"})


def read_names(code: types.CodeType) -> tuple[str, ...]:
    """The names of globals and attributes that a code reads, those of functions inside it too.

    A text that could be one may be: `getattr(self, "window")`.
    """
    return _once(_names, code, _read_names)


def global_names(code: types.CodeType) -> tuple[str, ...]:
    """The names of globals that a code reads, those of functions inside it too."""
    return _once(_globals, code, _global_names)


def names_of_self(code: types.CodeType) -> tuple[str, ...] | None:
    """The attributes of its first argument that a method reads; None where it may do anything else with it."""
    return _once(_of_self, code, _names_of_self)


def reads_any_name(code: types.CodeType) -> bool:
    """Whether a code may read attributes by names that are not in it: `getattr(self, f"slopes_{i}")`, `vars(self)`."""
    return _once(_any_names, code, _reads_any_name)


def _once(known: _Known[_Found], code: types.CodeType, find: Callable[[types.CodeType], _Found]) -> _Found:
    found = known.get(id(code))
    if found is None:
        found = known[id(code)] = code, find(code)
    return found[1]


def _inner(code: types.CodeType) -> Iterator[types.CodeType]:
    return (each for each in code.co_consts if isinstance(each, types.CodeType))


def _texts(code: types.CodeType) -> list[str]:
    return [each for each in code.co_consts if isinstance(each, str) and each.isidentifier()]


def _read_names(code: types.CodeType) -> tuple[str, ...]:
    inner = (name for each in _inner(code) for name in read_names(each))
    return tuple(dict.fromkeys([*code.co_names, *inner, *_texts(code)]))


def _global_names(code: types.CodeType) -> tuple[str, ...]:
    own = [each.argval for each in dis.get_instructions(code) if each.opname in _OF_GLOBALS]
    inner = [name for each in _inner(code) for name in global_names(each)]
    by_text = read_names(code) if not _BY_TEXT.isdisjoint([*own, *inner]) else ()
    return tuple(dict.fromkeys([*own, *inner, *by_text]))


def _names_of_self(code: types.CodeType) -> tuple[str, ...] | None:
    # `super()` reads what the class has before.
    if not code.co_argcount or "__class__" in code.co_freevars or not _BY_TEXT.isdisjoint(read_names(code)):
        return None
    try:
        return tuple(dict.fromkeys(_attributes_of(code.co_varnames[0], code)))
    except _MoreThanAttributes:
        return None


class _MoreThanAttributes(Exception):
    """A variable is used otherwise than for its attributes."""


def _attributes_of(variable: str, code: types.CodeType) -> Iterator[str]:
    """The names of what a code reads of a variable."""
    told = list(dis.get_instructions(code))
    for one, following in zip(told, [*told[1:], None], strict=True):
        # Some instructions are of two variables.
        touched = one.argval if isinstance(one.argval, tuple) else (one.argval,)
        if variable not in touched or not any(kind in one.opname for kind in _OF_VARIABLES):
            continue
        # What comes next is done to the variable that is loaded last.
        is_loaded = touched.index(variable) == len(touched) - 1 and one.opname.startswith(("LOAD_FAST", "LOAD_DEREF"))
        if is_loaded and following is not None and following.opname in _OF_ATTRIBUTES and _is_plain(following.argval):
            yield following.argval
        elif one.opname != "LOAD_CLOSURE":
            raise _MoreThanAttributes
    for each in _inner(code):
        if variable in each.co_freevars:
            yield from _attributes_of(variable, each)


def _is_plain(name: str) -> bool:
    """Whether an attribute leads to no others, as `__dict__` does."""
    return not (name.startswith("__") and name.endswith("__"))


def _reads_any_name(code: types.CodeType) -> bool:
    if not _BY_ANY_NAME.isdisjoint(code.co_names) or any(map(reads_any_name, _inner(code))):
        return True
    told = list(dis.get_instructions(code))
    by_name = [i for i, each in enumerate(told) if each.opname in _OF_GLOBALS and each.argval in _BY_GIVEN_NAME]
    return not all(_is_of_constant(told[i + 1 :]) for i in by_name)


def _is_of_constant(told: list[dis.Instruction]) -> bool:
    """Whether the second argument of a call is a constant; the call is of what was loaded before these instructions."""
    # A third argument lies above the second from `above` on, until the end.
    depth, second, above, is_begun = 0, None, 0, False
    for place, each in enumerate(told):
        # Python 3.11 has two instructions for a call.
        if each.opname in ("CALL_FUNCTION", "PRECALL", "CALL") and depth == each.arg and not is_begun:
            constant = above - 1 if depth == 3 else place - 1
            return second == constant and told[constant].opname == "LOAD_CONST"
        is_begun = each.opname == "PRECALL"
        if each.opname == "PUSH_NULL":
            continue
        before, depth = depth, depth + dis.stack_effect(each.opcode, each.arg, jump=False)
        second = place if (before, depth) == (1, 2) else second
        above = place + 1 if depth <= 2 else above
    return False
