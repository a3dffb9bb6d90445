"""Standard output and error as they may be: closed, full, a pipe that nobody reads any more, of another encoding."""

from __future__ import annotations

import errno
import io
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from flashgen.printable import printable

# What an error calls the stream that it is of.
OUTPUT = "standard output"


class _Closed(io.TextIOBase):
    """In the place of a stream that was closed before we started: what is written to it is lost, and that is said."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), OUTPUT)


def prepare() -> None:
    """Make both streams take any text, with an escape for what their encoding does not have.

    A closed descriptor is given away no more: a file that is opened later would get its number, and what a library
    prints.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            with suppress(OSError):
                if _is_closed(number):
                    os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, _Closed() if name == "stdout" else io.StringIO())
        elif isinstance(stream, io.TextIOWrapper) and name != "stdin":
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show our warnings as commands show theirs: where in our code they arise says nothing to who runs one."""
    usual = warnings.formatwarning

    def text(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if category.__module__.partition(".")[0] == "flashgen":
            return f"warning: {printable(str(message))}\n"
        return usual(message, category, filename, lineno, line)

    warnings.formatwarning = text
    try:
        yield
    finally:
        warnings.formatwarning = usual


def flush() -> None:
    """Write out what is left; OSError where it is lost."""
    sys.stdout.flush()


def give_up(number: int) -> None:
    """Write nothing more to standard output, 1, or error, 2: what is left would fail again when Python ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def is_unicode(stream: IO[str]) -> bool:
    """Whether the stream has all characters."""
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "").startswith("utf")


def _is_closed(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return True
    return False
