"""How a command fails: one line on standard error and the exit code of the error."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

import typer

from flashgen.cli import streams
from flashgen.ending import in_full, told
from flashgen.errors import FlashgenError
from flashgen.printable import printable

P = ParamSpec("P")
R = TypeVar("R")

DEBUG_VARIABLE = "FLASHGEN_DEBUG"


def report(error: FlashgenError) -> None:
    """Say what went wrong; the traceback only under `--debug`."""
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exception(error)
    streams.flush()
    print(f"error: {in_full(error)}", file=sys.stderr, flush=True)


def lost(error: OSError) -> int:
    """What was to be written did not get there: say so, unless it was a pipe that is read no more; the exit code."""
    streams.give_up(1)
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exception(error)
    if not isinstance(error, BrokenPipeError):
        where = "standard output" if error.filename is None else error.filename
        try:
            print(f"error: {printable(f'{where}: {error.strerror or error}')}", file=sys.stderr, flush=True)
        except OSError:
            streams.give_up(2)
    return 1


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
            raise typer.Exit(lost(error)) from error
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
