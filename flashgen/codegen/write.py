"""Generated modules on disk: written only when they change, set aside where a proof fails, and imported afresh."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from flashgen.codegen.render import render
from flashgen.errors import UsageError, VerificationFailed
from flashgen.files import write_file, write_if_changed
from flashgen.spec.variant import Variant


def generate(variant: Variant, out: Path) -> Path:
    """Render a variant to `<out>/<name>.py` and return the path. An unchanged file is not touched."""
    path = variant.module_in(out)
    write_if_changed(path, render(variant))
    return path


@contextmanager
def on_trial(variant: Variant, out: Path) -> Iterator[Path]:
    """Render a variant as `generate` does, to be proven in the block; yields the path.

    Where the proof fails the module is set aside as `<name>.failed.py`, which no import finds, and what stood in its
    place comes back, unless that was the same. So it is where the proof does not end, as by Ctrl-C, but for what stood
    there before.
    """
    path = variant.module_in(out)
    before = path.read_bytes() if path.is_file() else None
    failed = path.with_name(f"{path.stem}.failed.py")
    try:
        generate(variant, out)
        yield path
    except VerificationFailed as error:
        is_back = _set_aside(path, failed, before)
        what = f"{path} is what it was before" if is_back else f"there is no {path} now"
        raise VerificationFailed(f"{error}\nthe module that failed is {failed}; {what}") from error
    except BaseException:
        if path.is_file() and path.read_bytes() != before:
            _set_aside(path, failed, before)
        raise
    failed.unlink(missing_ok=True)


def _set_aside(path: Path, failed: Path, before: bytes | None) -> bool:
    """Whether what was there before, something else, is there again."""
    now = path.read_bytes()
    os.replace(path, failed)
    if before is None or before == now:
        return False
    write_file(path, before)
    return True


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
