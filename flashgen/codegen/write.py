"""Generated packages on disk: written only when they change, and set aside where a proof fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from os.path import lexists
from pathlib import Path

from flashgen.codegen.exchange import Exchange
from flashgen.codegen.render import MODULE, render
from flashgen.errors import EnvironmentProblem, UsageError, VerificationFailed, add_note
from flashgen.files import check_folder, reason
from flashgen.spec.variant import Variant

# Beside the kernels: what was tuned for them.
RECORDS = "tuned"
# What each file of ours says in its first lines.
MARK = "\n    flashgen build "


def generate(variant: Variant, out: Path) -> Path:
    """Render a variant to the package `<out>/<name>` and return its path. Unchanged files are not touched."""
    path = variant.module_in(out)
    write_package(path, render(variant))
    return path


def write_package(path: Path, files: Mapping[str, str]) -> None:
    """Replace the package at `path` by one of these files, by name, in one step; its tuned records stay.

    So do files that are not ours. UsageError where something else is in the way, EnvironmentProblem, with the old
    package intact, where the folder or the disk does not let us.
    """
    with _replaced(path, files):
        pass


@contextmanager
def on_trial(variant: Variant, out: Path) -> Iterator[Path]:
    """Render a variant as `generate` does, to be proven in the block; yields the path.

    Where the proof fails the package is set aside as `<name>.failed`, which no import finds, and what stood in its
    place comes back, unless that was the same. So it is where the proof does not end, as by Ctrl-C, but for what stood
    there before. The package of another build, which came in its place meanwhile, stays. EnvironmentProblem where what
    was proven is not what lies there at the end.
    """
    path, files = variant.module_in(out), render(variant)
    failed = failed_place(path)
    _refuse_others(failed)
    with _replaced(path, files, failed) as exchange:
        try:
            yield path
        except VerificationFailed as error:
            exchange.kept = False
            raise VerificationFailed(f"{error}\n{_undone(exchange)}", error.found) from error
        except BaseException as error:
            if not exchange.kept:
                said = _undone(exchange)
                if lexists(path) and not exchange.is_back:
                    add_note(error, said)
            raise
        exchange.kept = True
        if not _is_current(path, files):
            raise EnvironmentProblem(
                f"{path} was changed while it was being proven, by another build or by hand; expected it to stay as it "
                "was rendered: build it again"
            )
        with suppress(OSError):
            exchange.discard(failed)
            if _is_ours(once := path.with_name(f"{path.name}.failed.py")):
                once.unlink()


def failed_place(path: Path) -> Path:
    """Where a package goes that fails its proof."""
    return path.with_name(f"{path.name}.failed")


def _undone(exchange: Exchange) -> str:
    """Undo an exchange; what there is then."""
    path = exchange.path
    try:
        exchange.undo()
    except OSError as error:  # It is tried again at the end.
        return f"{path} could not be set aside: {reason(error)}"
    failed = f"the package that failed is {exchange.aside}; " if exchange.is_aside else ""
    if exchange.is_back:
        return f"{failed}{path} is what it was before"
    return (
        f"{failed}{path} is another build's by now, and stays" if lexists(path) else f"{failed}there is no {path} now"
    )


@contextmanager
def _replaced(path: Path, files: Mapping[str, str], failed: Path | None = None) -> Iterator[Exchange]:
    """Put a package of these files at `path`; where the block fails and that was not there before, it is undone."""
    _refuse_others(path)
    with Exchange(path, failed) as exchange:
        try:
            exchange.kept = _is_current(path, files)
            if exchange.kept:
                exchange.hold(path)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                _fill(exchange.new, path, files)
                # With a module of one file, as flashgen once made them.
                places = (path, path.with_name(f"{path.name}.py"))
                exchange.put(place for place in places if place.is_dir() or _is_ours(place))
        except OSError as error:
            raise EnvironmentProblem(f"{path} cannot be written: {reason(error)}") from error
        yield exchange
        exchange.kept = True


def _fill(new: Path, path: Path, files: Mapping[str, str]) -> None:
    """Write the package, taking over from `path` what has not changed, the tuned records and what is not ours."""
    new.mkdir()
    for entry in path.iterdir() if path.is_dir() else ():
        if not (entry.name in files or _is_ours(entry) or entry.name == "__pycache__"):
            _take_over(entry, new / entry.name)
    records = failed_place(path) / RECORDS
    if not path.exists() and records.is_dir():
        _take_over(records, new / RECORDS)
    for name, text in files.items():
        if _says(path / name, text):
            _take_over(path / name, new / name)
            continue
        with (new / name).open("xb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())


def _refuse_others(path: Path) -> None:
    """UsageError where something stands at `path` that is no package of ours; EnvironmentProblem where none can see."""
    try:
        check_folder(path)
        entries = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    except UsageError as error:
        raise UsageError(f"{path} is no place for a package: {error}") from error
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read: {reason(error)}") from error
    if path.is_symlink() or (entries - {RECORDS, "__pycache__"} and not _is_ours(path / MODULE)):
        raise UsageError(f"{path} is not of flashgen's making; expected a generated package there, or nothing")


def _is_current(path: Path, files: Mapping[str, str]) -> bool:
    """Whether the package is there already, with nothing of an earlier one beside it."""
    if not path.is_dir() or _is_ours(path.with_name(f"{path.name}.py")):
        return False
    stale = any(_is_ours(entry) for entry in path.iterdir() if entry.name not in files)
    return not stale and all(_says(path / name, text) for name, text in files.items())


def _says(path: Path, text: str) -> bool:
    with suppress(OSError):
        return path.is_file() and not path.is_symlink() and path.read_bytes() == text.encode()
    return False


def _is_ours(path: Path) -> bool:
    """Whether flashgen generated this file: that stands in its docstring."""
    with suppress(OSError, UnicodeError):
        if path.suffix == ".py" and path.is_file() and not path.is_symlink():
            return MARK in path.read_text(encoding="utf-8")
    return False


def _take_over(old: Path, new: Path) -> None:
    """The same file, or folder of files, under another path."""
    if old.is_dir() and not old.is_symlink():
        shutil.copytree(old, new, symlinks=True, copy_function=_link)
    else:
        _link(old, new)


def _link(old: str | Path, new: str | Path) -> None:
    try:
        os.link(old, new, follow_symlinks=False)
    except OSError:  # A file system without links.
        shutil.copy2(old, new, follow_symlinks=False)
