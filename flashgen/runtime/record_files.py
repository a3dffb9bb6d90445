"""Reading the files of records. A call survives whatever lies in their place: it has a config without them too.

What was read whole and is malformed is set aside, so that it is reported once and its place is free. All else stays:
what cannot be read now may be good, and what a newer flashgen wrote is good for that one.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from flashgen.runtime.records import NewerFormat, Record

# No record is that long; more of a file is not read.
MOST_BYTES = 1 << 18
# Opening waits for nobody, as it would for the other end of a pipe.
_OPENING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)


class RecordWarning(UserWarning):
    """A kernel runs with a config that was not tuned for it, or a record could not be read."""


_reported: set[tuple[str, ...]] = set()
_reporting = threading.Lock()


def warn_once(mark: tuple[str, ...], message: str) -> None:
    """Warn, unless something with this mark was warned of before in this process."""
    with _reporting:
        known = mark in _reported
        _reported.add(mark)
    if not known:
        warnings.warn(message, RecordWarning, stacklevel=3)


def read_record(path: Path, strict: bool = False) -> Record | None:
    """The record in this file; None where there is none, or none that can be used, which is said once.

    A malformed one is set aside. `strict` raises what else there is to say, OSError or NewerFormat.
    """
    try:
        with _opened(path) as file:
            content = file.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES} bytes, as no record has")
            try:
                return _placed(Record.from_json(content.decode()), path)
            except NewerFormat:
                raise
            except ValueError as error:
                return None if _set_aside(path, file, error) else read_record(path, strict)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, NewerFormat, RecursionError) as error:
        if strict:
            raise
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        warn_once(("unread", str(path)), f"the tuned record {path} cannot be read ({why}); it is left there, unused")
        return None


def records_below(root: Path, gpu: str = "*", variant: str = "*", name: str = "*.json") -> list[Record]:
    """The readable records of a root, in the order of their paths. The last three are patterns for its three levels."""
    found = []
    try:
        for path in root.glob(f"{gpu}/{variant}/{name}"):
            found.append(path)
    except OSError as error:
        warn_once(("unread", str(root)), f"the folder of tuned records {root} cannot be read ({error.strerror})")
    records = (read_record(path) for path in sorted(found))
    return [record for record in records if record is not None]


def _opened(path: Path) -> BinaryIO:
    """A file to read; OSError also for what is no file, such as a folder or a pipe."""
    if not isinstance(path, Path):  # of an exported module
        return io.BytesIO(path.read_bytes())
    # A device is not even opened.
    _expect_file(os.stat(path))
    file = os.fdopen(os.open(path, _OPENING), "rb")
    try:
        _expect_file(os.fstat(file.fileno()))
    except BaseException:
        file.close()
        raise
    return file


def _expect_file(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a file")


def _placed(record: Record, path: Path) -> Record:
    """A record, if it lies where its key says."""
    if record.key.path.parts != path.parts[-3:]:
        raise ValueError(f"its key is not the one that its path names, but that of {record.key.path.as_posix()}")
    return record


def _set_aside(path: Path, file: BinaryIO, error: Exception) -> bool:
    """Move what was read from `path` out of the way, and say so. False where another file has taken its place."""
    outcome = "it is skipped"
    if isinstance(path, Path):
        aside = path.with_name(path.name + ".damaged")
        try:
            os.replace(path, aside)
            if not os.path.samestat(os.fstat(file.fileno()), os.stat(aside)):
                _put_back(aside, path)
                return False
            outcome = f"it was set aside as {aside.name}"
        except FileNotFoundError:
            return False
        except OSError:
            outcome = "it could not be set aside and is skipped"
    warn_once(("damaged", str(path)), f"the tuned record {path} cannot be read ({str(error)[:300]}); {outcome}")
    return True


def _put_back(aside: Path, path: Path) -> None:
    """What a writer has just put in the place of a damaged record, unless the next writer has by now."""
    with suppress(FileExistsError):
        os.link(aside, path)
    os.unlink(aside)
