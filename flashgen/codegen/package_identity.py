"""What the generated packages that lie somewhere are, without importing them."""

from __future__ import annotations

import ast
from pathlib import Path

from flashgen.codegen.render import MODULE
from flashgen.runtime.identity import Identity


def package_identity(package: Path) -> Identity | None:
    """What a generated package says of itself; None where there is no package, or it says nothing.

    It is read, not run: the package of an earlier flashgen may not import today.
    """
    try:
        tree = ast.parse((package / MODULE).read_text(encoding="utf-8"))
        call = next(node.value for node in tree.body if isinstance(node, ast.Assign) and _is_identity(node))
        assert isinstance(call, ast.Call)
        return Identity(**{str(word.arg): ast.literal_eval(word.value) for word in call.keywords})
    except (OSError, ValueError, SyntaxError, TypeError, RecursionError, StopIteration):
        return None


def _is_identity(node: ast.Assign) -> bool:
    target = node.targets[0]
    return isinstance(target, ast.Name) and target.id == "IDENTITY" and isinstance(node.value, ast.Call)
