"""Writing, clearing and shipping tuned records; `stored` lists them.

A table of records is written whole or not at all, and concurrent writers lose nothing: each holds a lock beside the
file while it reads it, merges its own and replaces it. Reading needs no lock, because a file is only ever replaced.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from flashgen.errors import EnvironmentProblem
from flashgen.runtime.identity import Identity
from flashgen.runtime.lookup import forget
from flashgen.runtime.record_files import MOST_BYTES, read_table, table_path
from flashgen.runtime.record_folders import cache_folder, shipped_in
from flashgen.runtime.record_table import NewerFormat, parse, to_text
from flashgen.runtime.records import Key, Record
from flashgen.runtime.usable_records import usable
from flashgen.tuning.stored import Stored, list_records, own_root, user_folder

LOCK_SECONDS = 60.0
Table = dict[Key, Record]


def write_record(record: Record, folder: Path | None = None, replace: bool = False) -> Record:
    """Store a record in its variant's folder (that of the user's cache when None); return the one that is there then.

    Where two writers have measured the same key, the lower median stays, then the newer measurement; `replace`
    stores this one whatever was there, but for what a newer flashgen wrote. Raises EnvironmentProblem, with what is
    there intact, when that cannot be read or the folder not be written.
    """
    path = table_path(user_folder(record.key.variant) if folder is None else folder, record.key.gpu)

    def merged(table: Table) -> Table:
        present = table.get(record.key)
        kept = record if present is None or replace else min(present, record, key=_rank)
        return {**table, record.key: kept}

    return _rewrite(path, merged)[record.key]


def _rewrite(path: Path, change: Callable[[Table], Table]) -> Table:
    """Replace a table by what `change` makes of it, alone with it; nothing is written where that is the same."""
    with _locked(path):
        _temporary(path).unlink(missing_ok=True)  # Of a writer that was killed.
        before = {record.key: record for record in read_table(path, strict=True, check=usable)}
        after = change(before)
        if not after:
            path.unlink(missing_ok=True)
        elif after != before:
            _replace(path, _text(after, path))
    forget()
    return after


def _text(table: Table, path: Path) -> str:
    """A table as it is written; EnvironmentProblem where nobody could read it: it would be set aside, or left alone."""
    text = to_text(table.values())
    try:
        if len(text.encode()) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES >> 20} MiB; `flashgen cache clear` makes room")
        usable(parse(text))
    except ValueError as error:
        raise EnvironmentProblem(f"{path} stays as it is: what is to be written could not be read ({error})") from error
    return text


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """EnvironmentProblem for what goes wrong within the block too."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=LOCK_SECONDS):
            yield
    except Timeout as error:
        raise EnvironmentProblem(
            f"the lock {path}.lock has been held for {LOCK_SECONDS:.0f} s; end the process that holds it"
        ) from error
    except NewerFormat as error:
        raise EnvironmentProblem(
            f"{path} stays as it is: {error}; tune with that one, or name another folder in FLASHGEN_CACHE_DIR"
        ) from error
    except OSError as error:
        raise EnvironmentProblem(
            f"the tuned records {path} cannot be written: {error.strerror or error}; "
            "free or unlock the folder, or name another one in FLASHGEN_CACHE_DIR"
        ) from error


def _rank(record: Record) -> tuple:
    """Lower is better; among equal times the newer, among equal ages the smaller text, so that order never matters."""
    newest_first = [-ord(letter) for letter in record.measured_at]
    return record.median_us, newest_first, json.dumps(record.as_dict(), sort_keys=True)


def _replace(path: Path, text: str) -> None:
    """Write a file, whose lock is held, through a temporary one beside it, which only a kill leaves behind."""
    # Readable for whom the user's other files are, which tempfile's are not.
    temporary = _temporary(path)
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


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def clear_records(**filters: str) -> int:
    """Delete the user's records that match, without a filter studies and all else too; return how many records went."""
    root, gone = own_root(), list_records(None, usable, **filters)
    tables = {entry.path for entry in gone}
    try:
        for path in sorted(tables if filters else tables | {*_begun(root)}):
            _rewrite(path, partial(_without, {entry.record.key for entry in gone if entry.path == path}))
        for path in [] if filters else _leftovers(root):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise EnvironmentProblem(f"the cache {root.parent} cannot be cleared: {error}; check who owns it") from error
    forget()
    return len(gone)


def _without(keys: Set[Key], table: Table) -> Table:
    return {key: record for key, record in table.items() if key not in keys}


def studies_folder() -> Path:
    """Where this host keeps its studies, one file for each workload."""
    return cache_folder() / "studies"


def _leftovers(root: Path) -> list[Path]:
    """What is no table: damaged ones that were set aside, records that an earlier flashgen wrote, studies.

    Locks stay, empty as they are: where one is deleted that a writer holds, the next takes another and both write.
    """
    found = [*root.glob("*/*.json.*damaged"), *root.glob("*/*/*.json*"), *studies_folder().rglob("*.log*")]
    return [path for path in found if path.is_file() and path.suffix != ".lock"]


def _begun(root: Path) -> list[Path]:
    """The tables of which a writer has begun to write one anew: it still does, or was killed."""
    return [path.with_name(path.name[1:-4]) for path in root.glob("*/.*.json.tmp")]


@dataclass(frozen=True)
class Exported:
    """The files that have what was copied, each once, the records that were, and those that were left out."""

    paths: tuple[Path, ...]
    copied: tuple[Record, ...]
    left_out: tuple[Record, ...]


def export_records(records: Iterable[Stored], out: Path) -> Exported:
    """Copy records beside the kernels of the packages in `out`, as far as they are of these very kernels.

    What else is for other kernels in a file that is written goes: no call would use it.
    """
    from flashgen.codegen.package_identity import package_identity

    asked = [entry.record for entry in records]
    paths: list[Path] = []
    copied: list[Record] = []
    for variant in dict.fromkeys(record.key.variant for record in asked):
        beside = package_identity(out / variant)
        if beside is None:
            continue
        fitting = [record for record in asked if record.key.variant == variant and is_of(record.key, beside)]
        for gpu in dict.fromkeys(record.key.gpu for record in fitting):
            own = {record.key: record for record in fitting if record.key.gpu == gpu}
            paths.append(table_path(shipped_in(out / variant), gpu))
            _rewrite(paths[-1], partial(_shipped_with, own, beside))
        copied += fitting
    return Exported((*dict.fromkeys(paths),), (*copied,), (*(record for record in asked if record not in copied),))


def _shipped_with(own: Table, beside: Identity, table: Table) -> Table:
    """A shipped table with these records, and no longer with those of kernels that are not beside it."""
    return {key: record for key, record in {**table, **own}.items() if is_of(key, beside)}


def is_of(key: Key, kernels: Identity) -> bool:
    """Whether a record with this key is of a module's kernels: of the same spec and the same text."""
    return (key.spec, key.templates) == (kernels.spec, kernels.templates.get(key.kernel))
