"""One folder in the place of another, by renames alone: whatever interrupts them, the other one can come back."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from filelock import FileLock

from flashgen.errors import add_note
from flashgen.files import reason

# What a folder is called while it is being filled, and where it was taken away again; no names of variants.
NEW, OUT = ".new", ".out"
# The file in it whose lock says that its process lives.
LOCK = ".lock"


class Exchange:
    """A new folder at `path`. What stood there comes back at the end of the block unless `kept` is set.

    Others may do the same at `path` meanwhile: only this one's own folder is ever taken away, wherever they put it.
    """

    def __init__(self, path: Path, aside: Path | None = None) -> None:
        """`aside` is where the new folder goes where it is not kept; with None it is deleted."""
        self.path, self.aside = path, aside
        self.kept = False
        # Whether the new folder has come to `aside`, and what stood at `path` is there again.
        self.is_aside = self.is_back = False
        self._beside: Path | None = None
        self._lock: FileLock | None = None
        self._own: int | None = None
        self._stale: tuple[Path, ...] = ()

    @property
    def beside(self) -> Path:
        """A folder on the disk of `path`, deleted at the end with all that is in it; its lock says that we live."""
        while self._beside is None:
            folder = Path(tempfile.mkdtemp(dir=self.path.parent, prefix=self._prefix))
            lock = _lock_of(folder, wait=True)
            if folder.exists():  # Nobody has taken it for a leftover before it was locked.
                self._beside, self._lock = folder, lock
        return self._beside

    @property
    def _prefix(self) -> str:
        return f".flashgen-{self.path.name}-"

    @property
    def new(self) -> Path:
        """What `put` puts at `path`."""
        return self.beside / NEW

    def hold(self, folder: Path) -> None:
        """This folder is the own one. While it is open no other gets its number, not even when it is deleted."""
        self._own = os.open(folder, os.O_RDONLY)

    def put(self, stale: Iterable[Path]) -> None:
        """The new folder at `path`, in the place of these: `path` and what lies beside it, as far as it is there."""
        self.hold(self.new)
        self._stale = (*stale,)
        for place in self._stale:
            os.rename(place, self.beside / place.name)
        os.rename(self.new, self.path)

    def undo(self) -> None:
        """What stood at `path` to where the own folder is, and that one to `aside`. Done again, it goes on.

        What stood there does not wait for what may fail.
        """
        place = self._place()
        if place is not None:
            os.rename(place, self.beside / OUT)
        self._bring_back(self.path if place is None else place)
        if self.aside is not None and self._beside is not None and (out := self._beside / OUT).exists():
            self.discard(self.aside)
            os.rename(out, self.aside)
            self.is_aside = True

    def discard(self, place: Path) -> None:
        """Delete what is there, if anything, at the end: no half of it is seen meanwhile."""
        if os.path.lexists(place):
            os.rename(place, Path(tempfile.mkdtemp(dir=self.beside), place.name))

    def _bring_back(self, to: Path) -> None:
        for place in self._stale:
            target = to.with_name(place.name)
            if (self.beside / place.name).exists() and not os.path.lexists(target):
                os.rename(self.beside / place.name, target)
                self.is_back = to == self.path

    def _clear_leftovers(self) -> None:
        """Delete what exchanges that were killed have left; what they took away comes back where nothing is by now."""
        for folder in self.path.parent.glob(f"{self._prefix}*"):
            lock = _lock_of(folder)
            if lock is None:
                continue
            taken = folder / self.path.name
            if taken.exists() and not os.path.lexists(self.path):
                os.rename(taken, self.path)
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()

    def _place(self) -> Path | None:
        """Where the own folder lies: at `path`, or where another exchange keeps what is to come back."""
        others = self.path.parent.glob(f".flashgen-*/{self.path.name}")
        return next((place for place in (self.path, *others) if self._is_own(place)), None)

    def _is_own(self, place: Path) -> bool:
        try:
            return self._own is not None and os.path.samestat(os.lstat(place), os.fstat(self._own))
        except FileNotFoundError:
            return False

    def __enter__(self) -> Exchange:
        with suppress(OSError):  # What is in the way of that is said where it is in the way of more.
            self._clear_leftovers()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Delete what is left over, but nothing that should have come back and did not."""
        try:
            if not self.kept:
                self.undo()
            if self._beside is not None:
                shutil.rmtree(self._beside, ignore_errors=True)
        except OSError as problem:
            if error is None:
                raise
            add_note(error, f"what stood at {self.path} could not be put back: {reason(problem)}; see {self._beside}")
        finally:
            if self._own is not None:
                os.close(self._own)
            if self._lock is not None:
                self._lock.release()


def _lock_of(folder: Path, wait: bool = False) -> FileLock | None:
    """The lock of a folder until it is released, or its process ends; None where another process has it.

    So it is where a file system has no locks: what lies there counts as somebody's.
    """
    lock = FileLock(folder / LOCK, timeout=-1 if wait else 0, thread_local=False)
    with suppress(OSError, NotImplementedError):
        if not folder.is_symlink():
            lock.acquire()
            return lock
    return None
