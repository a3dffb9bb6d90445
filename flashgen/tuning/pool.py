"""Processes that compile, kept for as long as there may be something to compile.

Imports neither torch nor triton, so that the processes start while the one that needs them still imports both.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from flashgen.tuning.nursery import Nursery
from flashgen.tuning.worker import RequestFailed, Worker

Asked = TypeVar("Asked", bound=Hashable)

COMPILE_SECONDS = 90.0
# For each GPU that waits for what they compile; nobody has more GPUs than that.
MOST_PROCESSES, ALL_GPUS = 16, 64
# What the drivers of NVIDIA's and AMD's GPUs make: a device for all of them, or one for each.
GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
EACH_GPU = "nvidia[0-9]*"


class CompilePool:
    """Answers requests, each once, in processes made by `factory` (see `worker.Worker`). Close it, or use a `with`.

    A request is any value with a hash that pickles; its answer is what the process gave, or the RequestFailed that came
    of it. What was asked for last comes first.
    """

    def __init__(self, factory: str, *arguments: Any, processes: int | None = None, gpus: int = 1) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        count = processes or max(1, min(cores - 1, gpus * MOST_PROCESSES))
        self._nursery = Nursery(factory, *arguments)
        self._workers = [Worker(factory, *arguments, nursery=self._nursery) for _ in range(count)]
        self._threads: list[threading.Thread] = []
        self._change = threading.Condition()
        self._answers: dict[Hashable, Future[Any]] = {}
        self._waiting: deque[Hashable] = deque()
        self._forks = self._closed = False

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> CompilePool:
        """Start the processes, which get ready while the caller does other things."""
        if not self._threads:
            self._threads = [threading.Thread(target=self._serve, args=(w,), daemon=True) for w in self._workers]
            self._nursery.start()
            for thread in self._threads:
                thread.start()
        return self

    def fork(self) -> None:
        """What the nursery prepares is there: if it was started, it prepares and forks now, before a first request."""
        with self._change:
            self._forks = bool(self._threads)
            self._change.notify_all()

    def close(self) -> None:
        """End the processes; what they were asked for fails."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        for worker in self._workers:
            worker.kill()
        # Those that are not ready yet end with it.
        self._nursery.close()
        while any(thread.is_alive() for thread in self._threads):
            # Again and again: a thread may just have started another process.
            for worker in self._workers:
                worker.kill()
            for thread in self._threads:
                thread.join(0.01)
        for worker in self._workers:
            worker.close()

    def begin(self, requests: Iterable[Hashable]) -> list[Future[Any]]:
        """The answers to come, one for each request. They are begun in this order, before all that wait."""
        requests = list(dict.fromkeys(requests))
        if requests:
            self.start()
        with self._change:
            self._answers.update((request, Future()) for request in requests if request not in self._answers)
            begun = {request for request, future in self._answers.items() if future.running() or future.done()}
            ahead = [request for request in requests if request not in begun]
            self._waiting = deque(dict.fromkeys([*ahead, *self._waiting]))
            self._change.notify_all()
            return [self._answers[request] for request in requests]

    def answers(self, requests: Sequence[Asked], seconds: float | None = None) -> dict[Asked, Any]:
        """What became of each request that was answered within `seconds`, None for no limit. What is under way goes on,
        for who asks again; what was not begun is forgotten."""
        requests = list(dict.fromkeys(requests))
        futures = self.begin(requests)
        wait(futures, seconds)
        self._withdraw(requests, futures)
        answered = zip(requests, futures, strict=True)
        return {request: future.result() for request, future in answered if future.done() and not future.cancelled()}

    def answers_each(
        self, groups: Iterable[Sequence[Asked]], meanwhile: Callable[[], object] = lambda: None
    ) -> Iterator[dict[Asked, Any]]:
        """What became of each group of requests, one after the other.

        Each is begun when it comes, behind those before it, all of them before the first is waited for, and before what
        `meanwhile` begins: the group that is waited for, then whatever has the greatest `length`, where requests have
        one, so that nothing long is left for the end.
        """
        begun: list[Sequence[Asked]] = []
        for group in groups:
            begun.append(_longest_first(group))
            self.begin(chain.from_iterable(begun))
        meanwhile()
        self.begin(_longest_first(chain.from_iterable(begun)))
        yield from map(self.answers, begun)

    def _withdraw(self, requests: Sequence[Hashable], futures: Sequence[Future[Any]]) -> None:
        """Forget those of these requests that were not begun."""
        with self._change:
            for request, future in zip(requests, futures, strict=True):
                if future.cancel():
                    del self._answers[request]
                    self._waiting.remove(request)

    def _serve(self, worker: Worker) -> None:
        with self._change:
            self._change.wait_for(lambda: self._waiting or self._forks or self._closed)
            forks = self._forks and not self._closed
        if forks:
            with contextlib.suppress(OSError):  # The first request tells it.
                worker.start()
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                request = self._waiting.popleft()
                future = self._answers[request]
                future.set_running_or_notify_cancel()
            try:
                future.set_result(worker.ask(request, COMPILE_SECONDS))
            except RequestFailed as failure:
                future.set_result(failure)


def _longest_first(requests: Iterable[Asked]) -> list[Asked]:
    return sorted(requests, key=lambda request: -getattr(request, "length", 0))


def compilers(variant: Any, module_path: Path, gpus: int | None = 1) -> CompilePool:
    """A pool for the kernels of a generated module, for so many GPUs, None for all of this machine.

    Its processes start now where there seems to be a GPU, otherwise with the first request.
    """
    arguments = (str(Path(module_path).resolve()), variant)
    pool = CompilePool("flashgen.tuning.compiler:compiler", *arguments, gpus=ALL_GPUS if gpus is None else gpus)
    return pool.start() if gpus_in_sight() else pool


def gpus_in_sight() -> int:
    """How many GPUs this machine seems to have, without asking a library; 0 where there is no driver."""
    if not any(Path(device).exists() for device in GPU_DEVICES):
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return sum(1 for part in visible.split(",") if part.strip() not in ("", "-1"))
    return max(1, len(list(Path("/dev").glob(EACH_GPU))))
