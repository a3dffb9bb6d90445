"""Starting processes: they trust no folder that this one does not, and end with this one."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

from flashgen.child import trusted_path

CHILD = str(Path(__file__).resolve().with_name("child.py"))


def command(what: str, *arguments: str, anywhere: bool = False) -> list[str]:
    """The command line for a module, as `python -m` runs it, for "module:function", or for "exec" and a command.

    `anywhere`: it is started by another process than this one, with which it ends instead.
    """
    return [sys.executable, CHILD, str(0 if anywhere else os.getpid()), what, *arguments]


def environment() -> dict[str, str]:
    """This process's environment, in which Python finds the modules that it finds here, the working folder's aside."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(trusted_path()), "PYTHONSAFEPATH": "1"}


def start(line: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that may outlive the thread that asks for it; `options` are those of subprocess.Popen.

    One thread starts them all, and lives as long as this process: with it they would end.
    """
    return _starter(os.getpid()).submit(lambda: subprocess.Popen(line, **options)).result()


@lru_cache(maxsize=1)
def _starter(pid: int) -> ThreadPoolExecutor:
    """By process: in one that was forked from this one there is no such thread."""
    return ThreadPoolExecutor(1, thread_name_prefix="flashgen-start")
