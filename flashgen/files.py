"""Files whose names a user chose: written beside and renamed, onto nothing or a regular file, and never over a spec."""

from __future__ import annotations

import io
import os
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from flashgen.errors import EnvironmentProblem, FlashgenError, UsageError
from flashgen.printable import in_short

SPEC_SUFFIXES = (".yaml", ".yml")
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_target(path: Path, suffix: str = "") -> None:
    """UsageError where `path` is nothing to write a file to: no regular file, or a spec. A path of nothing is fine.

    `suffix`: what its name must end with.
    """
    if not path.name.lower().endswith(suffix):
        raise UsageError(f"{path} does not end in {suffix}; expected a name that says what is written there")
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    except NotADirectoryError as error:
        place = next(place for place in path.parents if place.exists())
        raise EnvironmentProblem(f"{path} cannot be written: {place} is no folder") from error
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"{path} cannot be written: {reason(error)}") from error
    if not stat.S_ISREG(mode):
        what = _KINDS.get(stat.S_IFMT(mode), "no regular file")
        raise UsageError(f"{path} is {what}; expected the path of a file, there or not")
    if path.suffix.lower() in SPEC_SUFFIXES or _is_spec(path):
        raise UsageError(f"{path} is a spec's; expected the path of another file: what is written would replace it")


def write_file(path: Path, content: str | bytes) -> None:
    """Replace a file by `content` in one step, text as UTF-8; its folder is made.

    UsageError as for `check_target`; EnvironmentProblem, with the old file intact, where the folder or the disk does
    not let us.
    """
    check_target(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".flashgen-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"{path} cannot be written: {reason(error)}") from error


def write_if_changed(path: Path, text: str) -> None:
    """Replace a file by `text` as `write_file` does, unless it says this already."""
    with suppress(OSError, ValueError):
        if not path.is_symlink() and path.is_file() and path.read_bytes() == text.encode():
            return
    write_file(path, text)


def append_to(path: Path, text: str) -> None:
    """Add text to the end of a file in one write; otherwise as `write_file`."""
    check_target(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A pipe that took the file's place since is refused, not waited for.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        with open(os.open(path, flags, 0o644), "a", encoding="utf-8") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"{path} cannot be written: {reason(error)}") from error


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Add lines to the end of a file, as `append_to` does. One that was cut short before stays a line of its own."""
    check_target(path)  # Before it is read: a pipe would be waited for.
    append_to(path, "\n" * _ends_within_a_line(path) + "".join(f"{line}\n" for line in lines))


def _ends_within_a_line(path: Path) -> bool:
    with suppress(OSError, ValueError), path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"
    return False


def lines_of(path: Path) -> list[str]:
    """The lines of a file, with a sign for what is no UTF-8; none where there is no file.

    EnvironmentProblem where it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"{path} cannot be read: {reason(error)}") from error


def check_folder(path: Path, writable: bool = False) -> None:
    """UsageError where `path`, or what it lies in, is there and no folder.

    EnvironmentProblem where that cannot be seen, or, if it is to be `writable`, nothing be written there.
    """
    try:
        place = next((place for place in (path, *path.parents) if place.exists()), None)
    except OSError as error:
        raise EnvironmentProblem(f"{in_short(str(path), 300)} cannot be reached: {reason(error)}") from error
    if place is None:
        return
    if not place.is_dir():
        raise UsageError(f"{place} is no folder; expected the path of one, there or not")
    if writable and not os.access(place, os.W_OK | os.X_OK):
        raise EnvironmentProblem(f"{path} cannot be written: {place} is a folder in which we may not")


def png_of(figure: Any, dpi: int) -> bytes:
    """A figure of matplotlib as the content of a PNG file."""
    content = io.BytesIO()
    figure.savefig(content, dpi=dpi, format="png")
    return content.getvalue()


def _is_spec(path: Path) -> bool:
    """Whether a file is a spec by what it says, whatever its name."""
    from flashgen.spec.model import SpecForm
    from flashgen.spec.source import read

    try:
        return path.is_file() and {"name"} <= {*read(path).data} <= {*SpecForm.model_fields}
    except FlashgenError:
        return False


def reason(error: OSError | ValueError) -> str:
    """What the system says was wrong, without the path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
