"""Specs that nobody wrote, and their kernels, kept in the cache folder."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import sys
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from threading import get_ident
from types import ModuleType
from typing import Any

from filelock import FileLock

import flashgen
from flashgen.codegen import generate, load_module
from flashgen.errors import EnvironmentProblem
from flashgen.flex.text import yaml_of
from flashgen.runtime.record_folders import cache_folder
from flashgen.spec import load


def kept_module(spec: Mapping[str, Any], shelf: str) -> ModuleType:
    """The module of a spec, rendered where it is not in the folder `shelf` of the cache yet."""
    text = yaml_of(spec)
    digest = hashlib.sha256(f"{_renderer()}\n{text}".encode()).hexdigest()[:16]
    place = Path(digest, f"{spec['name']}.yaml")
    try:
        module = _kept(cache_folder() / shelf / place, text)
    except (OSError, EnvironmentProblem) as error:
        own = _own_folder()
        warnings.warn(
            f"nothing can be kept in the cache: {error}; kernels are kept in {own} until the end", stacklevel=2
        )
        module = _kept(own / shelf / place, text)
    return _loaded(module, digest)


def _kept(path: Path, text: str) -> Path:
    """The package of a spec that lies at `path`; both are written where they are not there as they should be."""
    _keep(path, text)
    variant = load(path)
    module = variant.module_in(path.parent)
    sums = path.with_suffix(".sha256")
    if not _is_whole(module, sums):
        # Processes that start together write one after the other.
        with FileLock(path.with_suffix(".lock")):
            if not _is_whole(module, sums):
                shutil.rmtree(module, ignore_errors=True)
                generate(variant, path.parent)
                _keep(sums, _sum_of(module))
    return module


def _loaded(module: Path, digest: str) -> ModuleType:
    """The module under a name of its own: torch.compile finds modules by their names, and mods share theirs."""
    name = f"flashgen_kept.{module.name}_{digest}"
    if name not in sys.modules:
        loaded = load_module(module)
        loaded.__name__ = name
        sys.modules[name] = loaded
    return sys.modules[name]


def _is_whole(module: Path, sums: Path) -> bool:
    """Whether a package is there as it was written. Its digest is written last, so it is looked at first."""
    return sums.is_file() and module.is_dir() and _says(sums, _sum_of(module))


@cache
def _own_folder() -> Path:
    """A folder of this process's own, for what cannot be kept in the cache."""
    own = Path(mkdtemp(prefix="flashgen-"))
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return own


def _keep(file: Path, text: str) -> None:
    """Write a file of ours, which other processes and threads may be writing too, and which may have come to harm."""
    if not _says(file, text):
        file.parent.mkdir(parents=True, exist_ok=True)
        own = file.with_suffix(f".{os.getpid()}-{get_ident()}")
        try:
            own.write_text(text, encoding="utf-8")
            os.replace(own, file)
        except OSError:
            own.unlink(missing_ok=True)
            raise


def _says(file: Path, text: str) -> bool:
    return file.is_file() and file.read_text(encoding="utf-8", errors="replace") == text


def _sum_of(package: Path) -> str:
    """A digest of the files of a generated package, by which one sees that they have come to harm."""
    found = hashlib.sha256()
    for path in sorted(package.glob("*.py")):
        text = path.read_bytes()
        found.update(f"{path.name} {len(text)}\n".encode() + text)
    return found.hexdigest()


@cache
def _renderer() -> str:
    """What renders: another version, or the same with changed files, renders anew."""
    package = Path(flashgen.__file__).parent
    folders = (package, package.parent / "templates")
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".jinja"))
    return f"{flashgen.__version__} {[(path.name, path.stat().st_mtime_ns) for path in files]}"
