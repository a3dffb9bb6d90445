"""Every function of a rendered file reads names that it has: its own, its arguments, the file's or Python's."""

from __future__ import annotations

import builtins
import symtable
from collections.abc import Iterator

import pytest
from gallery import NAMES, VARIANTS
from spec_shelf import SPECS

from flashgen.codegen import render
from flashgen.spec import load
from flashgen.spec.variant import Variant

_KNOWN = {*dir(builtins), "__file__"}


def unknown_names(source: str) -> list[tuple[str, str]]:
    """The functions that read a name that nobody gives them, and the name."""
    module = symtable.symtable(source, "module", "exec")
    given = _KNOWN | {s.get_name() for s in module.get_symbols() if s.is_assigned() or s.is_imported()}
    return [
        (table.get_name(), symbol.get_name())
        for table in _tables(module)
        for symbol in table.get_symbols()
        if symbol.is_global() and symbol.get_name() not in given
    ]


def unknown_in_files(variant: Variant) -> list[tuple[str, str]]:
    return [found for text in render(variant).values() for found in unknown_names(text)]


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def test_an_unknown_name_is_found() -> None:
    assert unknown_names("def f(a):\n    return [a + b for _ in range(3)]\n") == [("listcomp", "b")] or unknown_names(
        "def f(a):\n    return [a + b for _ in range(3)]\n"
    ) == [("f", "b")]


@pytest.mark.parametrize("what", SPECS)
def test_of_a_spec_of_the_shelf(what: str) -> None:
    assert unknown_in_files(load({"name": "shelf", **SPECS[what]})) == []


@pytest.mark.parametrize("name", NAMES)
def test_of_the_gallery(name: str) -> None:
    assert unknown_in_files(VARIANTS[name]) == []
