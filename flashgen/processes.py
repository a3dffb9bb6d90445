"""Starting processes: they trust no folder that this one does not, and end with this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache, lru_cache
from importlib.metadata import distributions
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from flashgen.child import trusted_path

CHILD = str(Path(__file__).resolve().with_name("child.py"))

Process = subprocess.Popen[bytes]


def command(what: str, *arguments: str, anywhere: bool = False) -> list[str]:
    """The command line for a module, as `python -m` runs it, for "module:function", or for "exec" and a command.

    `anywhere`: it is started by another process than this one, with which it ends instead.
    """
    return [sys.executable, CHILD, str(0 if anywhere else os.getpid()), what, *arguments]


def program(package: str) -> list[str]:
    """The command line for the program of a package, where what is installed says which file that is; else `command`.

    For what takes less time than Python does to start. The package is not asked: what is imported here by its name may
    lie in the working folder.
    """
    file = _program_file(package)
    return command(package) if file is None else [file]


@cache
def _program_file(package: str) -> str | None:
    for found in distributions(name=package, path=trusted_path()):
        for file in found.files or ():
            if file.stem == package and os.access(place := file.locate(), os.X_OK):
                return str(place)
    return None


def environment() -> dict[str, str]:
    """This process's environment, in which Python finds the modules that it finds here, the working folder's aside."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(trusted_path()), "PYTHONSAFEPATH": "1"}


def start(line: list[str], **options: Any) -> Process:
    """Start a process that may outlive the thread that asks for it; `options` are those of subprocess.Popen."""
    return _starter(os.getpid()).start(lambda: subprocess.Popen(line, **options))


class _Starter:
    """One thread that starts all processes: they end with the thread that started them, and it lives to the end.

    No thread of a pool does: those end when the main thread does, while others may go on.
    """

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Future[Process], Callable[[], Process]]] = SimpleQueue()
        Thread(target=self._run, name="flashgen-start", daemon=True).start()

    def start(self, make: Callable[[], Process]) -> Process:
        made: Future[Process] = Future()
        self._asked.put((made, make))
        return made.result()

    def _run(self) -> None:
        while True:
            made, make = self._asked.get()
            try:
                made.set_result(make())
            except BaseException as error:  # noqa: BLE001 - it is raised where the process was asked for
                made.set_exception(error)
            del made, make


@lru_cache(maxsize=1)
def _starter(pid: int) -> _Starter:
    """By process: in one that was forked from this one there is no such thread."""
    return _Starter()
