"""How a command fails: one line on standard error and the exit code of the error."""

from __future__ import annotations

import errno
import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

import typer

from flashgen.cli import streams
from flashgen.ending import in_full, told
from flashgen.errors import EnvironmentProblem, FlashgenError
from flashgen.files import reason

P = ParamSpec("P")
R = TypeVar("R")

DEBUG_VARIABLE = "FLASHGEN_DEBUG"
# What `write` gives where what is written does not get there.
LOST = {
    errno.EAGAIN, errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC, errno.ENXIO, errno.EPIPE,
    errno.ESTALE,
}  # fmt: skip


def is_debugging() -> bool:
    """Whether tracebacks are asked for; the variable reads as the option's own parser reads it."""
    return os.environ.get(DEBUG_VARIABLE, "").strip().lower() in ("1", "true", "t", "yes", "y", "on")


def report(error: FlashgenError) -> None:
    """Say what went wrong; the traceback only under `--debug`."""
    if is_debugging():
        traceback.print_exception(error)
    streams.flush()
    print(f"error: {in_full(error)}", file=sys.stderr, flush=True)


def ended_by(error: OSError) -> int:
    """Say what the system refused, unless that was to write to a pipe that is read no more; the exit code.

    1 where what was to be written did not get there, 2 for all else.
    """
    if not _is_lost_output(error):
        problem = EnvironmentProblem(f"{_place(error)}{reason(error)}")
        problem.__cause__ = error
        report(problem)
        return problem.exit_code
    streams.give_up(1)
    if is_debugging():
        traceback.print_exception(error)
    if not isinstance(error, BrokenPipeError):
        try:
            print(f"error: {streams.OUTPUT}: {reason(error)}", file=sys.stderr, flush=True)
        except OSError:
            streams.give_up(2)
    return 1


def _is_lost_output(error: OSError) -> bool:
    """An error of writing to a stream names no file; one of a working folder that is gone neither, but another code."""
    return error.filename == streams.OUTPUT or (error.filename is None and error.errno in LOST)


def _place(error: OSError) -> str:
    """Where something was refused, as far as that is known."""
    if error.filename is not None:
        return f"{error.filename}: "
    try:
        os.getcwd()
    except OSError:
        return "the working folder: "
    return ""


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """Turn the errors of the catalogue into an exit code."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except FlashgenError as error:
            report(error)
            raise typer.Exit(error.exit_code) from error
        except OSError as error:
            raise typer.Exit(ended_by(error)) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(told(error)) from error

    return run


def for_each(items: Iterable[str], action: Callable[[str], None]) -> None:
    """Do the action for every item, also after one that fails; exit with the worst code."""
    worst = 0
    for item in items:
        try:
            action(item)
        except FlashgenError as error:
            report(error)
            worst = max(worst, error.exit_code)
    if worst:
        raise typer.Exit(worst)
