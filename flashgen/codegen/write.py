"""Generated files on disk: written whole or not at all, only when they change, and imported afresh."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from flashgen.codegen.render import render
from flashgen.errors import EnvironmentProblem, UsageError
from flashgen.spec.variant import Variant


def generate(variant: Variant, out: Path) -> Path:
    """Render a variant to `<out>/<name>.py` and return the path. An unchanged file is not touched."""
    path = variant.module_in(out)
    write_if_changed(path, render(variant))
    return path


def write_if_changed(path: Path, text: str) -> None:
    """Replace a file by `text` in one step; EnvironmentProblem where the folder or the disk does not let us."""
    try:
        if path.is_file() and path.read_bytes() == text.encode():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be written: {error.strerror or error}") from error


def load_module(path: Path) -> ModuleType:
    """Import a generated file afresh, under its own name below a package of its own."""
    path = Path(path).resolve()
    if path.suffix != ".py" or not path.is_file():
        raise UsageError(f"no generated module at {path}; expected one made by `flashgen build`")
    loader = _SourceLoader(f"flashgen_generated.{path.stem}", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


class _SourceLoader(SourceFileLoader):
    """Ignores bytecode, which counts as current for any text of the same length within a second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)
