"""Generated packages, and modules that were exported, imported as they are on disk now.

Each goes by its name and a digest of its text: torch.compile and pickle find modules by their names, and those of two
specs may share theirs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from threading import RLock
from types import CodeType, ModuleType

from flashgen.codegen.render import MODULE
from flashgen.errors import UsageError

# What they are imported below, whatever folder they lie in.
PARENT = "flashgen_generated"
_importing = RLock()


def load_module(path: Path) -> ModuleType:
    """Import a generated package, or an exported module, afresh: whoever has an earlier one keeps that.

    A package goes by its folder or the path of its `__init__.py`.
    UsageError for any other path.
    """
    path = Path(path).resolve()
    if path.name == MODULE:
        path = path.parent
    file = path / MODULE
    if not file.is_file():
        file = path
    if file.suffix != ".py" or not file.is_file():
        raise UsageError(f"no generated module at {path}; expected one made by `flashgen build`")
    folders = [str(path)] if file != path else None
    name = f"{PARENT}.{path.stem}_{_digest(sorted(path.glob('*.py')) if folders else [file])}"
    with _importing:
        _add_parent()
        for earlier in [each for each in sys.modules if f"{each}.".startswith(f"{name}.")]:
            del sys.modules[earlier]
        if _FINDER not in sys.meta_path:
            sys.meta_path.insert(0, _FINDER)
        spec = importlib.util.spec_from_file_location(
            name, file, loader=_SourceLoader(name, str(file)), submodule_search_locations=folders
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return module


def _digest(files: Iterable[Path]) -> str:
    """A digest of the text of a module."""
    found = hashlib.sha256()
    for file in files:
        text = file.read_bytes()
        found.update(f"{file.name} {len(text)}\n".encode() + text)
    return found.hexdigest()[:12]


def _add_parent() -> None:
    """Let modules below it be imported by their names again, which imports what they are below."""
    if PARENT not in sys.modules:
        parent = ModuleType(PARENT, "What was loaded from any folder.")
        parent.__path__ = []
        sys.modules[PARENT] = parent


class _SourceLoader(SourceFileLoader):
    """Ignores bytecode, which counts as current for any text of the same length within a second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


class _Finder(MetaPathFinder):
    """Finds the files of generated packages, for that loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:  # fmt: skip
        parent, _, name = fullname.rpartition(".")
        if not parent.startswith(f"{PARENT}.") or path is None:
            return None
        file = Path(path[0], f"{name}.py")
        return importlib.util.spec_from_file_location(fullname, file, loader=_SourceLoader(fullname, str(file)))


_FINDER = _Finder()
