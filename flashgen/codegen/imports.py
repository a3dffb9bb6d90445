"""The imports of a generated file, from the names that its text reads and does not define."""

from __future__ import annotations

import builtins
import symtable
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from flashgen.codegen.layout import WIDTH

RUNTIME = Path(__file__).parents[1] / "runtime"
# Modules of the runtime whose functions kernels call, beside those of the folder `device`.
SHIMS = ("gluon",)


@dataclass(frozen=True)
class Home:
    """Where a name comes from: `import module`, or with `name` `from module import name`, either `as alias`."""

    module: str
    name: str = ""
    alias: str = ""

    @property
    def imported(self) -> str:
        return (self.name or self.module) + (f" as {self.alias}" if self.alias else "")


_HOPPER = "triton.experimental.gluon.language.nvidia.hopper"
_COMMON: Mapping[str, Home] = {
    "math": Home("math"),
    "torch": Home("torch"),
    "triton": Home("triton"),
    "tl": Home("triton.language", alias="tl"),
    "gluon": Home("triton.experimental", "gluon"),
    "gl": Home("triton.experimental.gluon", "language", "gl"),
    "runtime": Home("flashgen", "runtime"),
    **{
        name: Home(_HOPPER, name)
        for name in ("fence_async_shared", "mbarrier", "tma", "warpgroup_mma", "warpgroup_mma_wait")
    },
}


def import_block(source: str, own: Mapping[str, str], before_own: str = "") -> str:
    """The import statements of a file with this text, sorted and parted as ruff does; empty where it needs none.

    `own` says which of the variant's files defines a name: {"_visible": "pair"} is `from .pair import _visible`.
    `before_own` is what is to run before those are imported.
    """
    sections: list[list[str]] = [[], [], [], []]
    for module, statement in _statements(homes_of(source, own)):
        sections[_section(module)].append(statement)
    parts = ["\n".join(section) for section in sections]
    return "\n\n".join(part for part in (*parts[:-1], before_own, parts[-1]) if part)


def homes_of(source: str, own: Mapping[str, str]) -> list[Home]:
    """Where what a text reads and does not define comes from, in the order of the names."""
    places = {**_homes(), **{name: Home(f".{file}", name) for name, file in own.items()}}
    needed = sorted(free_names(source))
    unknown = [name for name in needed if name not in places]
    assert not unknown, f"no import is known for {', '.join(unknown)}"
    return [places[name] for name in needed]


def importable_names() -> frozenset[str]:
    """What every variant may import by name."""
    return frozenset(_homes())


# What every module has; and what Python itself reads wherever a function reads the name `super`.
_OF_PYTHON = frozenset({"__file__", "__name__", "__class__"})


def free_names(source: str) -> frozenset[str]:
    """The names that a text reads and neither defines nor has from Python itself."""
    return _names(source)[1]


def defined_names(source: str) -> tuple[str, ...]:
    """The names that a module defines at its top, what it imports left out."""
    return _names(source)[0]


@lru_cache(maxsize=256)
def _names(source: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """What a text defines, in its order, and what it reads besides. Its tree would take three times as long."""
    top = symtable.symtable(source, "generated", "exec")
    defined = [symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() and not symbol.is_imported()]
    return tuple(defined), frozenset({*_read(top)} - {*defined, *dir(builtins)} - _OF_PYTHON)


def _read(table: symtable.SymbolTable) -> Iterator[str]:
    """What a scope and those within it read of the module's names."""
    # Of a function, most names are its own.
    names = table.get_globals() if isinstance(table, symtable.Function) else table.get_identifiers()
    for symbol in map(table.lookup, names):
        if symbol.is_referenced() and (table.get_type() == "module" or symbol.is_global()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _read(child)


@cache
def _homes() -> Mapping[str, Home]:
    """What every variant may import: the languages of kernels, and what the runtime has for these.

    A name that two modules define is none to import: such are their own.
    """
    found = {name: [home] for name, home in _COMMON.items()}
    for path in (*(RUNTIME / f"{name}.py" for name in SHIMS), *sorted((RUNTIME / "device").rglob("*.py"))):
        module = ".".join(("flashgen", *path.relative_to(RUNTIME.parent).with_suffix("").parts))
        for name in defined_names(path.read_text(encoding="utf-8")):
            found.setdefault(name, []).append(Home(module, name))
    return {name: homes[0] for name, homes in found.items() if len(homes) == 1}


def _statements(homes: Iterable[Home]) -> Iterator[tuple[str, str]]:
    """Each module and its statement: `import` before `from`, these by the modules' names."""
    modules: dict[str, list[Home]] = {}
    for home in homes:
        if home.name:
            modules.setdefault(home.module, []).append(home)
        else:
            modules.setdefault("", []).append(home)
    for plain in sorted(modules.pop("", []), key=lambda home: home.module):
        yield plain.module, f"import {plain.imported}"
    for module in sorted(modules):
        names = [home.imported for home in sorted(modules[module], key=lambda home: _rank(home.name))]
        line = f"from {module} import {', '.join(names)}"
        if len(line) > WIDTH:
            line = "\n".join([f"from {module} import (", *(f"    {name}," for name in names), ")"])
        yield module, line


def _rank(name: str) -> tuple[int, str]:
    """Constants come first, then classes, then all else."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def _section(module: str) -> int:
    """The standard library, others' packages, ours, and the variant's own files."""
    if module.startswith("."):
        return 3
    top = module.split(".")[0]
    return 2 if top == "flashgen" else 0 if top in sys.stdlib_module_names else 1
