"""The device library has no constants of its modules.

Triton 3.6 puts such a constant into the key of a kernel only if somebody has asked for the key of the function that
reads it before: what one process compiles another would not find in Triton's cache.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent.parent
FILES = [
    path for folder in ("flashgen/runtime/device", "generated") for path in sorted((REPOSITORY / folder).rglob("*.py"))
    if path.name != "__init__.py"
]  # fmt: skip


def read_constants(text: str) -> Iterator[str]:
    """What functions under a decorator read of the names that are assigned, or imported in capitals, beside them."""
    tree = ast.parse(text)
    assigned = {
        name.id for node in tree.body if isinstance(node, (ast.Assign, ast.AnnAssign))
        for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    }  # fmt: skip
    imported = {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    constants = assigned | {name for name in imported if name.isupper()}
    for function in tree.body:
        if isinstance(function, (ast.FunctionDef, ast.ClassDef)) and function.decorator_list:
            for node in ast.walk(function):
                if isinstance(node, ast.Name) and node.id in constants:
                    yield f"{function.name}: {node.id}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_kernels_read_no_constant_of_a_module(path: Path) -> None:
    assert list(read_constants(path.read_text(encoding="utf-8"))) == []


def test_a_constant_of_a_module_is_found() -> None:
    text = "from a import FAR\nROOM = tl.constexpr(128)\n\n\n@triton.jit\ndef first(b):\n    return b * ROOM + FAR\n"
    assert sorted(read_constants(text)) == ["first: FAR", "first: ROOM"]
