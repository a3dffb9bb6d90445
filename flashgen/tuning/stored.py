"""The records that there are: those of the user's cache, and those that are shipped beside kernels.

Listing them needs no kernel and no torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from flashgen.errors import EnvironmentProblem, UsageError
from flashgen.runtime.record_files import Check, as_written, records_in, table_path, warn_once
from flashgen.runtime.record_folders import NoCacheFolder, shipped_in, user_root
from flashgen.runtime.records import Record


@dataclass(frozen=True)
class Stored:
    """A record and the file in which it lies. `source` is "user cache" or "shipped"."""

    record: Record
    path: Path
    source: str


def user_folder(variant: str) -> Path:
    """The folder of the user's own records of a variant; EnvironmentProblem where there is none."""
    return own_root() / variant


def own_root() -> Path:
    """The folder that has those of all variants; EnvironmentProblem where there is none."""
    try:
        return user_root()
    except NoCacheFolder as error:
        raise EnvironmentProblem(str(error)) from error


def list_records(
    folders: Iterable[tuple[str, Path]] | None = None, check: Check = as_written, **filters: str
) -> list[Stored]:  # fmt: skip
    """The records in these folders of variants, pairs of source and path; those of the user's cache when None.

    A table that does not pass the check is set aside. Each filter names a field of Key and a pattern for its text:
    `list_records(variant="alibi", gpu="*H200*")`.
    """
    folders = user_folders() if folders is None else folders
    return [
        Stored(record, table_path(folder, record.key.gpu), source)
        for source, folder in folders
        for record in records_in(folder, check)
        if _matches(record, filters)
    ]


def user_folders() -> list[tuple[str, Path]]:
    """The folders of the user's own records, one for each variant."""
    return [("user cache", path) for path in _folders(own_root(), "*")]


def shipped_folders(out: Path) -> list[tuple[str, Path]]:
    """The folders of the records that are shipped with the packages in a folder."""
    return [("shipped", path) for path in _folders(out, str(shipped_in(Path("*"))))]


def _folders(root: Path, pattern: str) -> list[Path]:
    try:
        os.listdir(root)  # `glob` finds nothing where it may not look.
        return sorted(path for path in root.glob(pattern) if path.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        warn_once(("unread", str(root)), f"the folder {root} cannot be searched for tuned records ({error.strerror})")
        return []


def find_record(text: str, folders: Iterable[tuple[str, Path]] | None = None) -> Stored:
    """The one record whose name contains `text`; UsageError where there is none, or more than one.

    Of those for one key it is that of the first folder, as for a call.
    """
    stored = [entry for entry in list_records(folders) if text in entry.record.key.name]
    found = [*{entry.record.key: entry for entry in reversed(stored)}.values()][::-1]
    if len(found) != 1:
        names = ", ".join(entry.record.key.name for entry in found[:5]) or "none"
        names += f" and {len(found) - 5} more" if len(found) > 5 else ""
        raise UsageError(f"{len(found)} records match {text!r} ({names}); expected a text that one record's name has")
    return found[0]


def _matches(record: Record, filters: Mapping[str, str]) -> bool:
    for field, pattern in filters.items():
        if not hasattr(record.key, field):
            raise UsageError(f"a record has no field {field!r}; expected one of {', '.join(vars(record.key))}")
        if not fnmatchcase(str(getattr(record.key, field)).lower(), pattern.lower()):
            return False
    return True
