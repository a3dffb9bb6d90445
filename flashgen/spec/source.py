"""Reading a spec: YAML or a mapping in, plain data and a map from each key path to its place in the file out.

Scalars follow YAML 1.2's core schema: only true and false are bools, so `off` stays a name and 1e-6 is a number.
Duplicate keys, tags, several documents, empty values and documents that are too large or too deep, also through
aliases, are refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from flashgen.errors import Location, SpecError, UsageError
from flashgen.lang.tokens import Where, within
from flashgen.printable import on_one_line
from flashgen.spec.places import Lines, scalar_at
from flashgen.spec.yaml_errors import spec_error

KeyPath: TypeAlias = tuple[str | int, ...]

MAX_BYTES = 256 * 1024
MAX_DEPTH = 24
MAX_NODES = 5000
_TOO_DEEP = f"at most {MAX_DEPTH} levels of nesting"
_TOO_MANY = f"at most {MAX_NODES} values, those that aliases repeat counted again"


@dataclass(frozen=True)
class Mark:
    """Where a value stands: its location, its key's, and the span of its text."""

    key: Location
    value: Location
    start: int = 0
    end: int = 0


@dataclass(frozen=True)
class Document:
    """A spec's data, and where each of its values stands. A mapping from Python has no marks."""

    file: str
    data: dict[str, Any]
    text: str = ""
    marks: Mapping[KeyPath, Mark] = field(default_factory=dict)
    lines: Lines | None = None

    def at(self, path: KeyPath) -> Location:
        """Where the value at the path stands, or the nearest value that holds it."""
        return self._mark(path).value

    def key(self, path: KeyPath) -> Location:
        """Where the last key of the path stands."""
        return self._mark(path).key

    def expression(self, path: KeyPath, value: str) -> tuple[str, Where]:
        """The text of an expression, and what says where the character at an index of it stands.

        As the file has it, with its line breaks: a comment in it ends with its line.
        """
        mark = self._mark(path)
        if self.lines is not None:
            said = scalar_at(self.text, mark.start, mark.end, self.lines)
            if said.text.split() == value.split():
                return said.text, said.at
        return value, within(value, mark.value)

    def _mark(self, path: KeyPath) -> Mark:
        if not self.marks:
            here = Location(f"{self.file}:{'.'.join(map(str, path))}" if path else self.file)
            return Mark(here, here)
        while path not in self.marks:
            path = path[:-1]
        return self.marks[path]


def read(source: str | os.PathLike[str] | Mapping[str, Any]) -> Document:
    """Read a spec from a YAML file or a mapping.

    Raises UsageError where there is no such file, SpecError where it is not acceptable YAML.
    """
    if isinstance(source, Mapping):
        budget = _Budget("<dict>")
        data = _plain(source, (), budget)
        return Document("<dict>", data)
    if not isinstance(source, str | os.PathLike):
        raise UsageError(f"a spec of type {type(source).__name__}; expected a path or a mapping")
    file = os.fsdecode(source)
    return parse_yaml(_read_text(file), on_one_line(file))


def parse_yaml(text: str, file: str) -> Document:
    """Read a spec from YAML text; `file` is what errors call it."""
    lines = Lines(file, text)
    try:
        loader = _Loader(text, lines)
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise spec_error(error, text, lines) from error
    except yaml.reader.ReaderError as error:
        raise SpecError(
            lines.at(error.position), f"the character U+{ord(text[error.position]):04X}", "printable text"
        ) from error
    if not isinstance(root, yaml.MappingNode):
        what = "an empty file" if root is None else "no mapping at the top"
        raise SpecError(Location(file, 1, 1), what, "keys such as name and score, each with a value")
    marks: dict[KeyPath, Mark] = {(): Mark(Location(file, 1, 1), Location(file, 1, 1))}
    data = _Builder(lines, marks).build(root, ())
    return Document(file, data, text, marks, lines)


def _read_text(file: str) -> str:
    try:
        if not Path(file).is_file():
            what = f"{file!r} is no file" if Path(file).exists() else f"no spec at {file!r}"
            raise UsageError(f"{what}; expected the path of a YAML file")
        with open(file, "rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {file!r} ({error}); expected the path of a readable YAML file") from error
    if len(content) > MAX_BYTES:
        raise SpecError(Location(file), f"more than {MAX_BYTES} bytes", "a spec of ordinary size")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8-sig")
        raise SpecError(
            Lines(file, before).at(len(before)), f"the byte 0x{content[error.start]:02X}", "UTF-8 text"
        ) from error


class _Loader(yaml.SafeLoader):
    """Composes nodes with YAML 1.2's scalars; refuses tags and deep nesting before either costs anything."""

    yaml_implicit_resolvers: dict = {}  # noqa: RUF012  (PyYAML's own class attribute, emptied)

    def __init__(self, text: str, lines: Lines) -> None:
        super().__init__(text)
        self.lines, self.depth, self.budget = lines, 0, _Budget(lines.file)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        at = self.lines.at(event.start_mark.index)
        if getattr(event, "tag", None) is not None:
            raise SpecError(at, f"the YAML tag {event.tag!r}", "a plain value without a tag")
        if self.depth == MAX_DEPTH:
            raise SpecError(at, "deeper nesting", _TOO_DEEP)
        self.budget.spend((), at)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


_FLOAT = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
for _kind, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(_kind, re.compile(rf"(?:{_pattern})\Z"), _first)


@dataclass
class _Budget:
    """Counts values, so that neither aliases nor cycles can make a small spec large."""

    file: str
    nodes: int = 0

    def spend(self, path: KeyPath, at: Location) -> None:
        self.nodes += 1
        if len(path) > MAX_DEPTH:
            raise SpecError(at, "deeper nesting", _TOO_DEEP)
        if self.nodes > MAX_NODES:
            raise SpecError(at, "too many values", _TOO_MANY)


class _Builder:
    """Turns nodes into plain data and records where each value stands."""

    def __init__(self, lines: Lines, marks: dict[KeyPath, Mark]) -> None:
        self.lines, self.marks, self.budget = lines, marks, _Budget(lines.file)

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        self.budget.spend(path, self._at(node))
        if isinstance(node, yaml.MappingNode):
            return {key: self._child(value, (*path, key), at) for key, at, value in self._entries(node)}
        if isinstance(node, yaml.SequenceNode):
            return [self._child(item, (*path, index), self._at(item)) for index, item in enumerate(node.value)]
        return _scalar(node, self._at(node))

    def _child(self, node: yaml.Node, path: KeyPath, key: Location) -> Any:
        self.marks[path] = Mark(key, self._at(node), node.start_mark.index, node.end_mark.index)
        return self.build(node, path)

    def _entries(self, node: yaml.MappingNode) -> Iterator[tuple[str, Location, yaml.Node]]:
        seen: dict[str, Location] = {}
        for key_node, value in node.value:
            at = self._at(key_node)
            if value.tag == "null" and value.start_mark.index == key_node.end_mark.index:
                expected = "'KEY: VALUE'; between braces a value that has a comma in it stands in quotes"
                raise SpecError(at, f"{key_node.value!r} without a value", expected)
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag in ("null", "bool", "int", "float"):
                what = f"the key {key_node.value}" if isinstance(key_node, yaml.ScalarNode) else "a compound key"
                raise SpecError(at, what, "a name (in quotes, if it is meant as text)")
            key = key_node.value
            if key in seen:
                raise SpecError(at, f"the key {key!r} again", f"it once (the first is at line {seen[key].line})")
            seen[key] = at
            yield key, at, value

    def _at(self, node: yaml.Node) -> Location:
        return self.lines.at(node.start_mark.index)


def _scalar(node: yaml.Node, at: Location) -> bool | int | float | str:
    text: str = node.value
    if node.tag == "null":
        raise SpecError(at, "no value", "a value, or the key left out")
    if node.tag == "bool":
        return text.lower() == "true"
    if node.tag == "int":
        if len(text) > 20:
            raise SpecError(at, f"an integer of {len(text)} digits", "an integer of 64 bits")
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if node.tag == "float":
        return float(re.sub(r"(?i)\.(inf|nan)\Z", r"\1", text))
    return text


def _plain(value: Any, path: KeyPath, budget: _Budget) -> Any:
    """The data in dicts, lists and scalars of Python's own types."""
    here = Location(f"{budget.file}:{'.'.join(map(str, path))}" if path else budget.file)
    budget.spend(path, here)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise SpecError(here, f"the key {key!r}", "a name")
        return {key: _plain(item, (*path, key), budget) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, (*path, index), budget) for index, item in enumerate(value)]
    if value is None:
        raise SpecError(here, "no value (None)", "a value, or the key left out")
    if type(value) not in (bool, int, float, str):
        raise SpecError(here, f"a {type(value).__name__}", "a mapping, a list, text, a number, True or False")
    return value
