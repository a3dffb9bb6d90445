"""How programs end: with a line where something is wrong; and as Ctrl-C ends a command, for the other signals that ask
for it: what was begun is cleared away first."""

from __future__ import annotations

import functools
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import ParamSpec

from flashgen.errors import FlashgenError
from flashgen.printable import printable

P = ParamSpec("P")

# Of a system that stops its processes, and of a terminal that is closed.
SIGNALS = (signal.SIGTERM, signal.SIGHUP)
# Seconds in which a signal that comes again is the same request: some programs tell a process, then its whole group.
SAME = 1.0


class Ended(KeyboardInterrupt):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__((signal.strsignal(number) or "ended").lower())
        self.number = number


def reporting(main: Callable[P, int]) -> Callable[P, int]:
    """A program's `main` that says an error of ours in a line; what it returns is the exit status."""

    @functools.wraps(main)
    def reported(*given: P.args, **named: P.kwargs) -> int:
        try:
            return main(*given, **named)
        except FlashgenError as error:
            print(f"error: {in_full(error)}", file=sys.stderr)
            return error.exit_code

    return reported


def in_order(main: Callable[[], int]) -> int:
    """Run a program's `main`, in which a signal raises Ended; its exit status.

    Signals that were to be ignored, as by nohup, still are.
    """
    asked = _Asked()
    taken = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, asked)
    try:
        return main()
    except KeyboardInterrupt as error:
        return told(error)
    except Exception:
        # An extension module may have raised this one in the place of ours.
        if asked.last is None:
            raise
        return told(asked.last)
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def told(error: KeyboardInterrupt) -> int:
    """Say that this process was stopped; its exit status, as shells count."""
    print(in_full(error), file=sys.stderr, flush=True)
    return 128 + (error.number if isinstance(error, Ended) else signal.SIGINT)


def in_full(error: BaseException) -> str:
    """What an error says, and in lines of their own what was noted of it on its way."""
    return "\n".join((str(error) or "interrupted", *map(printable, getattr(error, "__notes__", ()))))


class _Asked:
    """What takes the signals."""

    def __init__(self) -> None:
        self.last: Ended | None = None
        self._when = -SAME

    def __call__(self, number: int, frame: FrameType | None) -> None:
        earlier, self._when = self._when, time.monotonic()
        if self._when - earlier >= SAME:
            self.last = Ended(number)
            raise self.last
