"""The file in which a study is kept.

Optuna's journal has one JSON object a line, each building on those before. A process that is killed while it writes
leaves half a line, and what is appended to that is lost too; so a journal is cut back to its sound part before use.
"""

from __future__ import annotations

import errno
import json
import os
import warnings
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

from filelock import FileLock
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend

from flashgen.errors import EnvironmentProblem
from flashgen.runtime.record_files import RecordWarning, new_aside
from flashgen.tuning.entries import is_entry

# A trial takes some five thousand.
MOST_BYTES = 128 << 20
# Nobody holds the lock for longer than a write takes, unless stopped by its terminal.
LOCK_SECONDS = 60.0


class _Journal(BaseJournalBackend):
    """Optuna's own backend, but for four things.

    It does not wait for the disk after every line, of which a trial has some twenty: what was written outlives this
    process all the same. Half a line that another process has left spoils none of ours. Its lock is released by the
    operating system when the holder dies. And it keeps the file open: where another process begins the study anew, this
    one goes on with the old file.
    """

    def __init__(self, path: Path, lock: FileLock) -> None:
        # Without a buffer: what cannot be written now must not be written later.
        self._path, self._lock, self._file = path, lock, path.open("a+b", buffering=0)
        self._read = 0
        self._logs: list[dict[str, Any]] = []

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        self._file.seek(self._read)
        # The last line may be one that another process has begun to write.
        for line in takewhile(lambda line: line.endswith(b"\n"), self._file.read().splitlines(keepends=True)):
            log = _log(line)
            if log is None:
                raise OSError(errno.EIO, f"its line {len(self._logs) + 1} is damaged", str(self._path))
            self._logs.append(log)
            self._read += len(line)
        return self._logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        text = "".join(f"{json.dumps(log, separators=(',', ':'))}\n" for log in logs).encode()
        with self._lock:
            self._cut_half_a_line()
            if self._file.write(text) < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def _cut_half_a_line(self) -> None:
        """Whoever has begun the last line, and holds the lock no more, was killed or had no room for it."""
        end = self._file.seek(0, os.SEEK_END)
        self._file.seek(self._read)
        whole = self._read + self._file.read().rfind(b"\n") + 1
        if whole < end:
            self._file.truncate(whole)

    def close(self) -> None:
        self._file.close()


@contextmanager
def opened_journal(path: Path) -> Iterator[JournalStorage]:
    """The storage in this file, made or mended as needed. EnvironmentProblem if the folder cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{path}.lock", timeout=LOCK_SECONDS)
        with lock:
            _mend(path)
            journal = _Journal(path, lock)
    except OSError as error:
        raise EnvironmentProblem(
            f"the study {path} cannot be written: {error.strerror or error}; "
            "free or unlock the folder, or name another one in FLASHGEN_CACHE_DIR"
        ) from error
    with closing(journal):
        yield JournalStorage(journal)


def _mend(path: Path) -> None:
    """Cut a damaged journal before its first damaged line; the whole of it is kept as `*.damaged`."""
    if not path.exists():
        return
    if not path.is_file():  # To read a pipe would be to wait for its other end.
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    if path.stat().st_size > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES >> 20} MiB, as no study has", str(path))
    content = path.read_bytes()
    lines = list(takewhile(_is_sound, content.splitlines(keepends=True)))
    if not _replays(lines):
        lines = lines[: bisect_left(range(1, len(lines)), True, key=lambda count: not _replays(lines[:count]))]
    sound = sum(map(len, lines))
    if sound < len(content):
        with new_aside(path) as aside:
            aside.write_bytes(content)
        with path.open("r+b") as file:
            file.truncate(sound)
        warnings.warn(
            f"the study {path} is damaged at byte {sound} and was cut there; the whole of it is kept as {aside.name}",
            RecordWarning,
            stacklevel=3,
        )


def _is_sound(line: bytes) -> bool:
    return _log(line) is not None


def _log(line: bytes) -> dict[str, Any] | None:
    """What a whole line says; None for one that is damaged."""
    try:
        log = json.loads(line, parse_constant=_no_number) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    return log if isinstance(log, dict) and is_entry(log) else None


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


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
