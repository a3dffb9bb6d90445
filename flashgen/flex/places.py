"""Where attributes of a captured value may come to be: what is read there now may be another thing at the next call."""

from __future__ import annotations

import enum
import functools
import threading
import types
import weakref
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from flashgen.flex.classes import CACHED, own_classes, specials
from flashgen.flex.parts import homes_and_names, is_read_whole
from flashgen.flex.vocabulary import Vocabulary

# Of these no attributes are read.
_WITHOUT_ATTRIBUTES = (
    types.MethodType, functools.partial, CACHED, tuple, list, set, frozenset, deque, dict, weakref.ref, ContextVar,
    threading.local, enum.Enum,
)  # fmt: skip


class _Keys:
    """The keys of a mapping: its `get` gives this object as long as there are no others."""

    def __init__(self, home: dict[str, Any]) -> None:
        self._home, self._keys = home, [*home]

    def get(self, name: str, default: Any) -> Any:
        return self if [*self._home] == self._keys else default


def places(value: Any, names: Vocabulary) -> Iterator[tuple[Any, str]]:
    """What has a `get`, as mappings have, and a name there by which code with these names may come to find an
    attribute: where the value has none, and in its classes, which may be given others.
    """
    if isinstance(value, types.FunctionType):
        yield from ((value.__dict__, name) for name in names.names if name not in value.__dict__)
    elif isinstance(value, type):
        yield from ((each.__dict__, name) for each in own_classes(value) for name in names.names)
    elif not isinstance(value, _WITHOUT_ATTRIBUTES):
        homes, wanted = homes_and_names(value, names)
        classes = [each.__dict__ for each in own_classes(type(value))]
        for name in wanted:
            if not any(name in home for home in homes):
                yield from ((home, name) for home in (*homes, *classes))
        yield from ((home, name) for name, _ in specials(type(value)) for home in classes)
        if is_read_whole(value):
            yield from ((_Keys(home), "") for home in homes)
