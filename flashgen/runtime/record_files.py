"""Reading records: `<gpu>.json` in a variant's folder. A call survives whatever lies there: it has a config anyway.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO

from flashgen.runtime.record_table import NewerFormat, parse
from flashgen.runtime.records import Record, gpu_slug

# What is asked of a table beyond its form: the records that it gives, or ValueError.
Check = Callable[[tuple[Record, ...]], tuple[Record, ...]]

# No table is that long; more of a file is not read.
MOST_BYTES = 1 << 22
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


def as_written(records: tuple[Record, ...]) -> tuple[Record, ...]:
    """The check that asks nothing more."""
    return records


def read_table(path: Path, strict: bool = False, check: Check = as_written) -> tuple[Record, ...]:
    """The records in this file; none where there is no file, or none that can be used, which is said once.

    A malformed one, or one that does not pass the check, is set aside. `strict` raises what else there is to say,
    OSError or NewerFormat.
    """
    try:
        with _opened(path) as file:
            content = file.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES} bytes, as no table of records has")
            try:
                return check(_placed(parse(content.decode()), path))
            except NewerFormat:
                raise
            except ValueError as error:
                return () if _set_aside(path, file, error) else read_table(path, strict, check)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except (OSError, NewerFormat, RecursionError) as error:
        if strict:
            raise
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        warn_once(
            ("unread", str(path)), f"the tuned records {path} cannot be read ({why}); they are left there, unused"
        )
        return ()


def table_path(folder: Path, gpu: str) -> Path:
    """Where the records of a variant, whose folder this is, lie for a GPU model."""
    return folder / f"{gpu_slug(gpu)}.json"


def records_in(folder: Path, check: Check = as_written) -> list[Record]:
    """The readable records of a variant's folder, of all GPU models."""
    found: list[Path] = []
    try:
        found += folder.glob("*.json")
    except OSError as error:
        warn_once(("unread", str(folder)), f"the folder of tuned records {folder} cannot be read ({error.strerror})")
    return [record for path in sorted(found) for record in read_table(path, check=check)]


def report_old(folder: Path, variant: str) -> None:
    """Say once where a variant, whose folder this is, has records as an earlier flashgen wrote them, a file each."""
    if not isinstance(folder, Path):  # of an exported module
        return
    # They lay in folders by GPU and variant: in the cache beside the variants', or beside the generated modules.
    for root in (folder.parent, folder.parent.parent / folder.name):
        with suppress(OSError):
            if next(root.glob(f"*/{variant}/*.json"), None) is not None:
                warn_once(
                    ("old", str(root)),
                    f"{root} has tuned records in the form of an earlier flashgen, a file each, which this one does "
                    "not read; `flashgen tune` measures anew, and what is there may be deleted",
                )


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


def _placed(records: tuple[Record, ...], path: Path) -> tuple[Record, ...]:
    """The records, if they lie where their keys say."""
    for record in records:
        if f"{gpu_slug(record.key.gpu)}.json" != path.name:
            raise ValueError(f"it has a record of {record.key.gpu!r}, whose file is {gpu_slug(record.key.gpu)}.json")
    return records


def _set_aside(path: Path, file: BinaryIO, error: Exception) -> bool:
    """Move what was read from `path` out of the way, and say so. False where another file has taken its place."""
    outcome, mark = "they are skipped", path
    if isinstance(path, Path):
        try:
            with new_aside(path) as aside:
                os.replace(path, aside)
                if not os.path.samestat(os.fstat(file.fileno()), os.stat(aside)):
                    _put_back(aside, path)
                    return False
            outcome, mark = f"the file was set aside as {aside.name}", aside
        except FileNotFoundError:
            return False
        except OSError:
            outcome = "the file could not be set aside and is skipped"
    warn_once(("damaged", str(mark)), f"the tuned records {path} cannot be read ({str(error)[:300]}); {outcome}")
    return True


@contextmanager
def new_aside(path: Path) -> Iterator[Path]:
    """An empty file beside one that is damaged, to take its content: no other has this name, nor gets it meanwhile."""
    for number in count(1):
        aside = path.with_name(f"{path.name}.{f'{number}.' if number > 1 else ''}damaged")
        with suppress(FileExistsError):
            os.close(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            break
    try:
        yield aside
    except OSError:
        with suppress(OSError):
            os.unlink(aside)
        raise


def _put_back(aside: Path, path: Path) -> None:
    """What a writer has just put in the place of damaged records, unless the next writer has by now."""
    with suppress(FileExistsError):
        os.link(aside, path)
    os.unlink(aside)
