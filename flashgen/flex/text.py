"""A traced spec as the YAML that a person would have written."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

_WIDTH = 118
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
            yield from (f"  {name}: {_inline(entry, 2)}" for name, entry in value.items())
        else:
            yield f"{key}: {_inline(value, 0)}"


def _inline(value: Any, indent: int) -> str:
    """A value after its key: mappings and lists in brackets, long expressions folded."""
    if isinstance(value, str):
        text = yaml.safe_dump(value, width=_WIDTH - indent, allow_unicode=True)
        lines = text.removesuffix("...\n").rstrip("\n").split("\n")
        return "\n".join([lines[0], *(f"{' ' * (indent + 2)}{line.lstrip()}" for line in lines[1:])])
    return yaml.safe_dump(value, width=math.inf, default_flow_style=True, sort_keys=False).removesuffix("...\n").strip()
