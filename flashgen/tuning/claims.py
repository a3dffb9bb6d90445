"""Which process has begun a trial of a study, and whether it may still be at it.

A process id alone says little: another process may have it by now, also one of another container. So a claim has when
its process started, on the clock of the very system that it runs on. Of other hosts' processes nothing can be asked,
and their clocks are not ours: they are watched, and given up where a trial does not end in the time that any trial has.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from flashgen.tuning.worker import runs

# The attribute of a trial that says which process has begun it.
CLAIM = "worker"

# For so many seconds a trial is seen under way before it is given up: longer than any measurement, the start of its
# process included. One that nobody has signed is signed at once, or its process has died in between.
GIVEN_UP_AFTER = 180.0
UNSIGNED_FOR = 5.0


def claim() -> dict[str, Any]:
    """What this process signs a trial with."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "system": system(), "pid": pid, "started": started(pid)}


class Watch:
    """Looks at trials that others have begun, again and again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[int, float] = {}

    def is_alive(self, trial: FrozenTrial) -> bool:
        """Whether the process that has begun a trial may still be at it."""
        signed = trial.user_attrs.get(CLAIM)
        if not (isinstance(signed, Mapping) and _is_claim(signed)):
            return self._for(trial, UNSIGNED_FOR)
        # One that runs may have been stopped, or have left the search long ago.
        return _told(signed) is not False and self._for(trial, GIVEN_UP_AFTER)

    def _for(self, trial: FrozenTrial, seconds: float) -> bool:
        """Whether it has been seen for less than that."""
        now = self._clock()
        return now - self._seen.setdefault(trial.number, now) < seconds


def _is_claim(signed: Mapping[str, Any]) -> bool:
    """Whether an attribute is what some version of flashgen signs with."""
    kinds = {"host": str, "system": str, "pid": int, "started": int}
    given = {name: value for name, value in signed.items() if value is not None}
    right = all(isinstance(given[name], kind) for name, kind in kinds.items() if name in given)
    pid = given.get("pid")
    return right and "host" in given and isinstance(pid, int) and 0 < pid < 1 << 31


def _told(signed: Mapping[str, Any]) -> bool | None:
    """Whether a process runs, as far as this system knows; None where it is another's, or nobody can tell it from a
    later one."""
    pid, begun = signed["pid"], signed.get("started")
    if signed.get("system") is None:
        # Without both, as flashgen signed before: an id that is free is a process that is gone.
        return False if signed["host"] == socket.gethostname() and not runs(pid) else None
    if signed["system"] != system():
        return None
    if pid == os.getpid():
        return False  # A search of this process that has ended.
    return None if begun is None and runs(pid) else started(pid) == begun is not None


@lru_cache(maxsize=1)
def system() -> str | None:
    """This boot of this host, and the container on it; None where there is no /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def started(pid: int) -> int | None:
    """When a process started, in ticks since the system did; None for one that is gone, or without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
