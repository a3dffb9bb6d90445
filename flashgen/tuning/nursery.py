"""A process that makes what its workers answer with once, and then forks them: they are ready at once.

What takes long to import is imported by one process, not by all of them side by side. What answers may have a method
`prepare` beside, which is called before the first fork, for what is not there earlier. The process must start no thread
and touch no GPU, for neither survives a fork.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

from flashgen.child import end_with
from flashgen.tuning import worker


class Nursery:
    """Forks processes that serve a factory, called once with `arguments`, as `worker.Worker` has it.

    They all have these `variables` in their environment, beside ours.
    """

    def __init__(self, factory: str, *arguments: Any, variables: Mapping[str, str] | None = None) -> None:
        self._task, self._variables = (factory, arguments), variables
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._lock = threading.Lock()
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process's id; None before it is started."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process unless it runs; it gets ready while the caller does other things."""
        with self._lock:
            if self._closed:
                raise OSError("the nursery is closed")
            if self._process is None or self._process.poll() is not None:
                self._pipe, theirs = Pipe()
                self._process = worker.spawned("flashgen.tuning.nursery:main", theirs, None, self._variables)
                self._pipe.send(self._task)

    def fork(self, theirs: Connection, errors: int) -> Forked:
        """A process that serves this end of a pipe; OSError where the nursery is closed."""
        self.start()
        with self._lock:
            assert self._pipe is not None and self._process is not None
            for handle in (theirs.fileno(), errors):
                send_handle(self._pipe, handle, self._process.pid)
        theirs.close()
        return Forked()

    def close(self) -> None:
        """End the process for good. What it forked ends when its parent has gone, if it is not killed before."""
        with self._lock:
            self._closed = True
            if self._process is not None and self._pipe is not None:
                self._pipe.close()
                self._process.kill()
                self._process.wait()


class Forked:
    """A process of another process: what one can do with it by its id, which it tells when it is ready."""

    pid: int | None = None

    def poll(self) -> int | None:
        """None while it runs, or is not ready yet."""
        return None if self.pid is None or worker.runs(self.pid) else 1

    def kill(self) -> None:
        """End it. Before it is ready it ends when the other end of its pipe is closed."""
        if self.pid is not None and worker.runs(self.pid):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> str:
        """Its status, which only the nursery could tell."""
        return "unknown"


def main() -> None:
    """The nursery's side: `argv` holds the pipe's file descriptor."""
    pipe = Connection(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides.
    try:
        answer = worker.made(*pipe.recv())
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for those that end.
        nursery, is_prepared = os.getpid(), False
        while True:
            theirs, errors = recv_handle(pipe), recv_handle(pipe)
            if not is_prepared:
                answer, is_prepared = worker.prepared(answer), True
                gc.freeze()  # None of the forked looks through what all of them have.
            if os.fork() == 0:
                _serve(nursery, pipe, theirs, errors, answer)
            os.close(theirs)
            os.close(errors)
    except (EOFError, OSError):
        return


def _serve(nursery: int, pipe: Connection, theirs: int, errors: int, answer: Any) -> None:
    """The life of a forked process."""
    try:
        end_with(nursery)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # It waits for the assembler.
        os.dup2(errors, sys.stderr.fileno())
        pipe.close()
        worker.serve(Connection(theirs), answer)
    finally:
        os._exit(0)
