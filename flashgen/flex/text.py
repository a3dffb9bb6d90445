"""A traced spec as the YAML that a person would have written."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

# A line ends with the first word beyond.
_WIDTH = 96
# What is a mapping of names, each with an entry on its own line.
_BLOCKS = frozenset({"params", "inputs", "let"})


def yaml_of(spec: Mapping[str, Any], comments: Mapping[str, str] | None = None, head: str = "") -> str:
    """The spec as YAML. `comments` stand above the keys that they are for, `head` at the top."""
    return "".join(f"{line}\n" for line in _lines(spec, comments or {}, head))


def _lines(spec: Mapping[str, Any], comments: Mapping[str, str], head: str) -> Iterator[str]:
    if head:
        yield f"# {head}"
    for key, value in spec.items():
        if key in comments:
            yield f"# {comments[key]}"
        if key in _BLOCKS:
            yield f"{key}:"
            for name, entry in value.items():
                yield from (f"  {line}" for line in _entry(name, entry))
        else:
            yield from _entry(key, value)


def _entry(key: str, value: Any) -> list[str]:
    """A key and its value: mappings and lists in brackets, long expressions folded."""
    flow = not isinstance(value, str)
    text = yaml.safe_dump(
        value, width=math.inf if flow else _WIDTH - len(key) - 2, default_flow_style=flow, sort_keys=False
    )
    first, *others = text.removesuffix("...\n").rstrip("\n").split("\n")
    return [f"{key}: {first}", *(f"  {line.lstrip()}" for line in others)]
