"""The device's functions in the text of a generated file, where a test may change them."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

MODULES = ("arithmetic", "dropout", "learned", "reciprocals", "softmax", "waves")
PORTABLE = [f"flashgen.runtime.device.{name}" for name in MODULES]


def written_out(source: str) -> str:
    """The file with the portable functions of the device that it imports at its end, in the place of the imports."""
    lines, functions = source.splitlines(), []
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ImportFrom) or node.module not in PORTABLE:
            continue
        text = Path(importlib.import_module(node.module).__file__).read_text()
        for function in _called(text, {alias.name for alias in node.names}):
            first = function.decorator_list[0].lineno - 1
            functions.append("\n".join(text.splitlines()[first : function.end_lineno]))
        for number in range(node.lineno - 1, node.end_lineno):
            lines[number] = ""
    return "\n".join(lines) + "\n\n\n" + "\n\n\n".join(functions) + "\n"


def _called(text: str, names: set[str]) -> list[ast.FunctionDef]:
    """The functions of a module that have these names, and those of it that they call."""
    own = {each.name: each for each in ast.parse(text).body if isinstance(each, ast.FunctionDef)}
    waiting, found = [name for name in names if name in own], dict[str, ast.FunctionDef]()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = own[name]
            waiting += [each.id for each in ast.walk(own[name]) if isinstance(each, ast.Name) and each.id in own]
    return [function for name, function in own.items() if name in found]
