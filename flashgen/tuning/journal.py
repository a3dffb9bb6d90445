"""The file in which a study is kept.

Optuna's journal has one JSON object a line, each building on those before. A process that is killed while it writes
leaves half a line, and what is appended to that is lost too; so a journal is cut back to its sound part before use.
"""

from __future__ import annotations

import json
import warnings
from bisect import bisect_left
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from filelock import FileLock
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend, JournalFileOpenLock

from flashgen.errors import EnvironmentProblem
from flashgen.runtime.lookup import RecordWarning


class _KernelLock(JournalFileOpenLock):
    """In place of Optuna's own lock: one that the operating system releases when its holder dies."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._lock = FileLock(f"{path}.lock")

    def acquire(self) -> bool:
        self._lock.acquire()
        return True

    def release(self) -> None:
        self._lock.release()


class _Journal(JournalFileBackend):
    """Does not wait for the disk after every line, of which a trial has some twenty: what was written outlives this
    process all the same. Should the machine go down, a few measurements are made again."""

    def __init__(self, path: Path, lock: _KernelLock) -> None:
        super().__init__(str(path), lock_obj=lock)
        self._journal, self._guard = path, lock

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        text = "".join(f"{json.dumps(log, separators=(',', ':'))}\n" for log in logs)
        self._guard.acquire()
        try:
            with self._journal.open("ab") as file:
                file.write(text.encode())
        finally:
            self._guard.release()


def open_journal(path: Path) -> JournalStorage:
    """The storage in this file, made or mended as needed. EnvironmentProblem if the folder cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _KernelLock(path)
        with FileLock(f"{path}.lock"):
            _mend(path)
        return JournalStorage(_Journal(path, lock))
    except OSError as error:
        raise EnvironmentProblem(
            f"the study {path} cannot be written: {error.strerror or error}; "
            "free or unlock the folder, or name another one in FLASHGEN_CACHE_DIR"
        ) from error


def _mend(path: Path) -> None:
    """Cut a damaged journal before its first damaged line; the whole of it is kept as `*.damaged`."""
    if not path.exists():
        return
    content = path.read_bytes()
    lines = list(takewhile(_is_sound, content.splitlines(keepends=True)))
    if not _replays(lines):
        lines = lines[: bisect_left(range(1, len(lines)), True, key=lambda count: not _replays(lines[:count]))]
    sound = sum(map(len, lines))
    if sound < len(content):
        path.with_name(path.name + ".damaged").write_bytes(content)
        with path.open("r+b") as file:
            file.truncate(sound)
        warnings.warn(
            f"the study {path} is damaged at byte {sound}; what comes after was set aside", RecordWarning, stacklevel=3
        )


def _is_sound(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


class _Lines(BaseJournalBackend):
    """A journal that is read alone."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._lines[log_number_from:]]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        raise NotImplementedError


def _replays(lines: Sequence[bytes]) -> bool:
    """Whether each line says something to Optuna."""
    try:
        JournalStorage(_Lines(lines))
    except Exception:  # noqa: BLE001 - whatever it stumbles over, the journal ends before it
        return False
    return True
