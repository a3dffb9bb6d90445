"""From what a user types for a spec to a variant."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

from flashgen.cli.output import Output
from flashgen.errors import UsageError
from flashgen.gallery import resolve

if TYPE_CHECKING:
    from flashgen.spec.variant import Variant


def read(spec: str, output: Output) -> Variant:
    """The variant that a user names; what it may not mean is said."""
    from flashgen.spec import load

    variant = load(resolve(spec))
    for doubt in variant.warnings:
        output.warn(doubt)
    return variant


class Packages:
    """The specs of one command that writes their packages to `out`: each package is of one of them."""

    def __init__(self, out: Path, output: Output) -> None:
        self._out, self._output = out, output
        self._named: dict[str, Path] = {}

    def read(self, spec: str) -> Variant:
        """As the function does. UsageError where a spec before this one has its name.

        It is said where the package that lies there was made from another spec, which may still be needed.
        """
        path, variant = resolve(spec), read(spec, self._output)
        earlier = self._named.setdefault(variant.name, path)
        if not path.samefile(earlier):
            raise UsageError(
                f"{path}: the name {variant.name!r}, which {earlier} has; expected another: one package each"
            )
        package = variant.module_in(self._out)
        other = _other_source(package, path)
        if other is not None:
            self._output.note(f"{package} was made from {other}, not from {path}")
        return variant


def _other_source(package: Path, path: Path) -> Path | None:
    """The spec that a package says it was made from, where that is there and another one than `path`.

    The package is read alone, not by what writes it, which imports torch: other processes are to be started before.
    """
    file = package / "__init__.py"
    try:
        tree = ast.parse(file.read_text(encoding="utf-8") if file.is_file() else "")
        words = (node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "source")
        said = (word.value for word in words if isinstance(word, ast.Constant))
        source = next((Path(text) for text in said if isinstance(text, str)), path)
        return source if source.is_file() and not source.samefile(path) else None
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None
