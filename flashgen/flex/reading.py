"""From a mod to what it captures, in ways that torch.compile follows: what is read there enters its graph."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

from flashgen.flex.parts import Way

_READERS: Mapping[str, Callable[[Any, Any], Any]] = {
    "cell": lambda value, place: value.__closure__[place].cell_contents,
    "default": lambda value, place: value.__defaults__[place],
    "keyword_default": lambda value, name: value.__kwdefaults__[name],
    "global": lambda value, name: value.__globals__[name],
    "func": lambda value, _: value.func,
    "argument": lambda value, place: value.args[place],
    "keyword": lambda value, name: value.keywords[name],
    "item": lambda value, key: value[key],
    "attribute": getattr,
    "special": lambda value, name: getattr(type(value), name),
    "property": lambda value, name: getattr(type(value), name).fget,
    # A mod that is an object stands for its method.
    "self": lambda value, _: value.__self__ if isinstance(value, types.MethodType) else value,
    "function": lambda value, name: (
        value.__func__ if isinstance(value, types.MethodType) else getattr(type(value), name)
    ),
}


def follow(value: Any, way: Way) -> Any:
    """What is at the end of a way."""
    for how, key in way:
        value = _READERS[how](value, key)
    return value


MADE_INSIDE = (
    "flashgen: a mod that is made inside the compiled function captures variables or reads globals, which "
    "torch.compile does not give away; expected a mod that is made outside of it"
)


def is_made_inside(value: Any) -> bool:
    """Whether torch.compile has seen how a function was made: it has no closure then that one could read."""
    if not isinstance(value, types.FunctionType):
        return False
    try:
        _ = value.__closure__
    except AttributeError:
        return True
    return False
