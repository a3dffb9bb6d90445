"""A worker process, so that what crashes, hangs or corrupts a GPU context costs one request only.

`Worker` starts `main` in a process with one end of a pipe. The process resolves the name of a factory, calls it
once, and then answers each request with what the factory's function returns. A failure comes back as
`RequestFailed`; after anything but a plain one the process is replaced at the next request.
"""

from __future__ import annotations

import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, TYPE_CHECKING, Any

from flashgen.processes import command, environment, start

if TYPE_CHECKING:
    from flashgen.tuning.nursery import Nursery

START_SECONDS = 120.0


class RequestFailed(Exception):
    """A request came to nothing. `reason` is short and countable, `detail` says more.

    A factory's function raises it itself for failures that it knows; `fatal` says that the process is spoiled.
    """

    def __init__(self, reason: str, detail: str = "", fatal: bool = False) -> None:
        super().__init__(reason, detail, fatal)
        self.reason, self.detail, self.fatal = reason, detail, fatal

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


class Worker:
    """Answers requests in a process of its own. Not for several threads at once.

    `factory` is "package.module:function"; it is called with `arguments` in the process and returns the function
    that answers. Arguments, requests and answers must pickle. With a `nursery` of the same factory the process is
    forked from it; otherwise it has these variables in its environment, beside ours.
    """

    def __init__(
        self, factory: str, *arguments: Any, nursery: Nursery | None = None, variables: Mapping[str, str] | None = None
    ) -> None:
        self._task, self._nursery, self._variables = (factory, arguments), nursery, variables
        self._process: Any = None
        self._pipe: Connection | None = None
        self._ready = False
        self._errors: IO[bytes] | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The process's id; None while there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process unless it runs; it gets ready while the caller does other things."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._pipe, theirs = Pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        if self._nursery is not None:
            self._process = self._nursery.fork(theirs, self._errors.fileno())
            return
        self._process = spawned("flashgen.tuning.worker:main", theirs, self._errors, self._variables)
        self._pipe.send(self._task)

    def ask(self, request: Any, seconds: float) -> Any:
        """The answer to a request; RequestFailed with reason "crashed", "timed out", or what went wrong in there."""
        try:
            self.start()
            assert self._pipe is not None
            if not self._ready:
                self._process.pid = self._receive(START_SECONDS)
                self._ready = True
            self._pipe.send(request)
            return self._receive(seconds)
        except (EOFError, OSError) as error:
            raise RequestFailed("crashed", self._last_words(), fatal=True) from error
        except RequestFailed as failure:
            if failure.fatal:
                self.close()
            raise
        except BaseException:
            self.close()
            raise

    def kill(self) -> None:
        """End the process from another thread: a request that it works on fails."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process."""
        process, self._process, self._ready = self._process, None, False
        for resource in (self._pipe, self._errors):
            if resource is not None:
                resource.close()
        self._pipe = self._errors = None
        if process is not None:
            process.kill()
            process.wait()

    def _receive(self, seconds: float) -> Any:
        assert self._pipe is not None
        if not self._pipe.poll(seconds):
            raise RequestFailed("timed out", f"no answer after {seconds:.1f} s", fatal=True)
        answer = self._pipe.recv()
        if isinstance(answer, RequestFailed):
            raise answer
        return answer

    def _last_words(self) -> str:
        """How a process that went by itself ended."""
        process, errors = self._process, self._errors
        if process is None or errors is None:
            return "the worker did not start"
        try:
            status = str(process.wait(1.0))
        except subprocess.TimeoutExpired:
            status = "unknown"
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - 500))
        text = errors.read().decode(errors="replace").strip()
        self.close()
        return f"the worker ended with status {status}" + (f": {text}" if text else "")


def main() -> None:
    """The worker's side: `argv` holds the pipe's file descriptor."""
    pipe = Connection(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides.
    try:
        serve(pipe, made(*pipe.recv()))
    except (EOFError, OSError):
        return


def spawned(
    function: str, theirs: Connection, errors: IO[bytes] | None, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """A process that runs "module:function" with this end of a pipe, closed here, as its argument."""
    # Workers compile and launch kernels; triton reads this when it is imported.
    compiling = {name: value for name, value in environment().items() if name != "TRITON_INTERPRET"}
    process = start(
        command(function, str(theirs.fileno())),
        env=compiling | dict(variables or {}),
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if errors is None else errors,
    )
    theirs.close()
    return process


def made(factory: str, arguments: tuple[Any, ...]) -> Any:
    """What a factory returns, or the RequestFailed that says why there is nothing."""
    return _guarded(lambda _: pkgutil.resolve_name(factory)(*arguments), None)


def prepared(answer: Any) -> Any:
    """What answers, once its `prepare` has run, if it has one; or the RequestFailed that came of that."""
    prepare = getattr(answer, "prepare", None)
    failed = None if prepare is None else _guarded(lambda _: prepare(), None)
    return answer if failed is None else failed


def serve(pipe: Connection, answer: Any) -> None:
    """Tell our id, then answer requests until the pipe is closed or this process spoiled."""
    try:
        failed = isinstance(answer, RequestFailed)
        pipe.send(answer if failed else os.getpid())
        while not failed:
            reply = _guarded(answer, pipe.recv())
            pipe.send(reply)
            failed = isinstance(reply, RequestFailed) and reply.fatal
    except (EOFError, OSError):
        return


def _guarded(function: Any, request: Any) -> Any:
    try:
        return function(request)
    except RequestFailed as failure:
        return failure
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent reports it and starts another process
        return RequestFailed(type(error).__name__, str(error)[:2000], fatal=True)


def runs(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # It runs, and is another user's.
        return True
    return True
