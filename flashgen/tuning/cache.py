"""Writing, listing, clearing and exporting tuned records.

A record is written whole or not at all, and concurrent writers lose nothing: each holds a lock beside the record
while it compares its own with the one on disk. Reading needs no lock, because a file is only ever replaced.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from uuid import uuid4

from filelock import FileLock, Timeout

from flashgen.errors import EnvironmentProblem, UsageError
from flashgen.files import write_file
from flashgen.runtime.lookup import NoCacheFolder, forget, user_root
from flashgen.runtime.record_files import read_record, records_below
from flashgen.runtime.records import NewerFormat, Record

LOCK_SECONDS = 60.0


@dataclass(frozen=True)
class Stored:
    """A record and where it lies. `source` is "user cache" or "shipped"."""

    record: Record
    path: Path
    source: str


def write_record(record: Record, root: Path | None = None, replace: bool = False) -> Record:
    """Store a record under `root` (the user's cache when None) and return the one that is there afterwards.

    Where two writers have measured the same key, the lower median stays, then the newer measurement; `replace`
    stores this one whatever was there, but for what a newer flashgen wrote. Raises EnvironmentProblem, with what is
    there intact, when that cannot be read or the folder not be written.
    """
    path = (user_folder() if root is None else root) / record.key.path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=LOCK_SECONDS):
            present = read_record(path, strict=True)
            if present is not None and present.key == record.key and not replace and _rank(present) <= _rank(record):
                return present
            _replace(path, record.to_json())
    except Timeout as error:
        raise EnvironmentProblem(
            f"the lock {path}.lock has been held for {LOCK_SECONDS:.0f} s; end the process that holds it"
        ) from error
    except NewerFormat as error:
        raise EnvironmentProblem(
            f"{path} stays as it is: {error}; tune with that one, or name another folder in FLASHGEN_CACHE_DIR"
        ) from error
    except OSError as error:
        raise _unwritable(path, error) from error
    forget()
    return record


def user_folder() -> Path:
    """The folder of the user's own records; EnvironmentProblem where there is none."""
    try:
        return user_root()
    except NoCacheFolder as error:
        raise EnvironmentProblem(str(error)) from error


def _unwritable(path: Path, error: OSError) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"the tuned record {path} cannot be written: {error.strerror or error}; "
        "free or unlock the folder, or name another one in FLASHGEN_CACHE_DIR"
    )


def _rank(record: Record) -> tuple:
    """Lower is better; among equal times the newer, among equal ages the smaller text, so that order never matters."""
    newest_first = [-ord(letter) for letter in record.measured_at]
    return record.median_us, newest_first, record.to_json()


def _replace(path: Path, text: str) -> None:
    """Write a file through a temporary one beside it, which never stays behind."""
    # Readable for whom the user's other files are, which tempfile's are not.
    temporary = path.with_name(f".record-{uuid4().hex}.tmp")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def list_records(roots: Mapping[str, Path] | None = None, **filters: str) -> list[Stored]:
    """The records below the roots (the user's cache when None), in the order of their paths.

    Each filter names a field of Key and a pattern for its text: `list_records(variant="alibi", gpu="*H200*")`.
    """
    roots = {"user cache": user_folder()} if roots is None else roots
    stored = [
        Stored(record, root / record.key.path, source)
        for source, root in roots.items()
        for record in records_below(root)
    ]
    return [entry for entry in stored if _matches(entry.record, filters)]


def find_record(text: str, roots: Mapping[str, Path] | None = None) -> Stored:
    """The one record whose path contains `text`; UsageError where there is none, or more than one."""
    found = [entry for entry in list_records(roots) if text in entry.path.as_posix()]
    if len(found) != 1:
        names = ", ".join(entry.record.key.path.as_posix() for entry in found[:5]) or "none"
        raise UsageError(f"{len(found)} records match {text!r} ({names}); expected a text that one record's path has")
    return found[0]


def clear_records(root: Path | None = None, **filters: str) -> int:
    """Delete the records that match, and what was set aside as damaged; return how many records went."""
    root = user_folder() if root is None else root
    gone = list_records({"": root}, **filters)
    leftovers = [] if filters else [*root.rglob("*.json.damaged"), *root.rglob("*.json.lock")]
    try:
        for path in [*(entry.path for entry in gone), *(path for path in leftovers if path.is_file())]:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise EnvironmentProblem(f"the cache {root} cannot be cleared: {error}; check who owns it") from error
    forget()
    return len(gone)


def export_records(records: Iterable[Stored], folder: Path) -> list[Path]:
    """Copy records into `folder`, from where they are shipped (`generated/tuned`); return their new paths."""
    paths = []
    for entry in records:
        path = folder / entry.record.key.path
        write_file(path, entry.record.to_json())
        paths.append(path)
    forget()
    return paths


def _matches(record: Record, filters: Mapping[str, str]) -> bool:
    for field, pattern in filters.items():
        if not hasattr(record.key, field):
            raise UsageError(f"a record has no field {field!r}; expected one of {', '.join(vars(record.key))}")
        if not fnmatchcase(str(getattr(record.key, field)).lower(), pattern.lower()):
            return False
    return True
