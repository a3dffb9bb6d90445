"""Other names for what a Python module defines, wherever it says them; all else stays as it is written."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping


def renamed(text: str, names: Mapping[str, str]) -> str:
    """A module's text with other names for some that it defines at its top level.

    AssertionError where a function binds such a name itself, or a string reads one: neither can be told apart here.
    """
    tree = ast.parse(text)
    _refuse_hidden(tree, names)
    lines = [line.encode() for line in text.split("\n")]
    for line, column, name in sorted(set(_places(tree, names)), reverse=True):
        before, after = lines[line][:column], lines[line][column:]
        if not after.startswith(name.encode()):
            raise AssertionError(f"{name} was expected in line {line + 1}: {lines[line].decode()}")
        lines[line] = before + names[name].encode() + after[len(name.encode()) :]
    return b"\n".join(lines).decode()


def _places(tree: ast.Module, names: Mapping[str, str]) -> Iterator[tuple[int, int, str]]:
    """Line and column, in bytes, of each of the names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in names:
            yield node.lineno - 1, node.col_offset, node.id
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in names:
            keyword = "def " if isinstance(node, ast.FunctionDef) else "class "
            yield node.lineno - 1, node.col_offset + len(keyword), node.name


def _refuse_hidden(tree: ast.Module, names: Mapping[str, str]) -> None:
    for node in ast.walk(tree):
        inner: set[str] = set()
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            below = list(ast.walk(node))
            inner = {each.arg for each in below if isinstance(each, ast.arg)}
            inner |= {each.id for each in below if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
        elif isinstance(node, ast.JoinedStr):
            inner = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        elif isinstance(node, ast.Global):
            inner = {*node.names}
        if inner & {*names}:
            raise AssertionError(f"{', '.join(sorted(inner & {*names}))} is also the name of something else")
