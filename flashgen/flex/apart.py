"""Partials and bound methods taken apart, and put together again: torch.compile hands functions, objects and tensors
on, not what is made of them.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

# How a value is made of leaves: None for a leaf, else what holds its parts, with the names of keywords, and theirs.
Shape = tuple[str, tuple[Any, ...], tuple[Any, ...]] | None


def taken_apart(value: Any) -> tuple[Shape, list[Any]]:
    """What a partial or a bound method is made of; whatever else is one leaf."""
    if isinstance(value, functools.partial):
        kind, keys = "partial", tuple(value.keywords)
        inner = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, types.MethodType):
        kind, keys, inner = "method", (), [value.__func__, value.__self__]
    elif type(value) is dict:
        kind, keys, inner = "dict", tuple(value), list(value.values())
    elif type(value) in (tuple, list):
        kind, keys, inner = "tuple" if type(value) is tuple else "list", (), list(value)
    else:
        return None, [value]
    shapes, leaves = [], []
    for each in inner:
        shape, found = taken_apart(each)
        shapes.append(shape)
        leaves.extend(found)
    return (kind, keys, tuple(shapes)), leaves


def put_together(shape: Shape, leaves: Iterator[Any]) -> Any:
    """The value again."""
    if shape is None:
        return next(leaves)
    kind, keys, shapes = shape
    inner = [put_together(each, leaves) for each in shapes]
    if kind == "partial":
        count = len(inner) - len(keys)
        return functools.partial(inner[0], *inner[1:count], **dict(zip(keys, inner[count:], strict=True)))
    if kind == "method":
        return types.MethodType(*inner)
    if kind == "dict":
        return dict(zip(keys, inner, strict=True))
    return tuple(inner) if kind == "tuple" else inner
