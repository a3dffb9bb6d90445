"""The real tools of tuning: a worker process for each GPU, and a pool of them for the compiler."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from typing import Any

from flashgen.codegen.rehearsal import Wanted
from flashgen.problems.problem import Problem
from flashgen.runtime.config import Config
from flashgen.runtime.records import Device
from flashgen.tuning import machine
from flashgen.tuning.clocks import Observation, Sampler
from flashgen.tuning.crew import Crew
from flashgen.tuning.outcome import Work
from flashgen.tuning.prune import Compiled, CompileRequest
from flashgen.tuning.requests import (
    ConcordRequest,
    ProofRequest,
    ReadyRequest,
    RehearseRequest,
    Request,
    TimeRequest,
    WorkRequest,
)
from flashgen.tuning.timing import Timing
from flashgen.tuning.worker import RequestFailed, Worker
from flashgen.tuning.workloads import Workload

# A request that takes longer has hung: compiling takes most of it, one launch at the largest problems the rest.
TRIAL_SECONDS = 60.0


class GpuWorker:
    """One GPU behind a worker process."""

    def __init__(self, bench: Worker) -> None:
        self._worker = bench
        self._one_at_a_time = threading.Lock()
        self._closed = False

    def _ask(self, request: Request) -> Any:
        with self._one_at_a_time:
            if self._closed:
                raise RequestFailed("closed", "the process of the GPU was ended")
            return self._worker.ask(request, TRIAL_SECONDS)

    def start(self) -> None:
        """Start the process, which gets ready while the caller does other things."""
        self._worker.start()

    def prepare(self, problem: Problem) -> None:
        """Make the inputs of a problem; what fails here fails again in a trial, and is told."""
        with suppress(RequestFailed):
            self._ask(ReadyRequest(problem))

    def close(self) -> None:
        """End the process; the requests that wait for it fail too."""
        self._closed = True
        while not self._one_at_a_time.acquire(timeout=0.05):
            # Again and again: it may just have been started.
            self._worker.kill()
        try:
            self._worker.close()
        finally:
            self._one_at_a_time.release()

    def time(self, workload: Workload, config: Config, milliseconds: float, best_us: float | None) -> Timing:
        return self._ask(TimeRequest(workload, config, milliseconds, best_us))

    def rehearse(self, workload: Workload, config: Config) -> Sequence[Wanted]:
        return self._ask(RehearseRequest(workload, config))

    def prove(self, workload: Workload, config: Config) -> str:
        return self._ask(ProofRequest(workload, config))

    def outliers(self, workload: Workload, configs: Sequence[Config], arbiter: Config) -> Mapping[Config, str]:
        return self._ask(ConcordRequest(workload, tuple(configs), arbiter))

    def work(self, workload: Workload) -> Work:
        return self._ask(WorkRequest(workload))


class Host:
    """This machine, with the GPUs of these indices, which are all of the model `device`, and the processes of a crew.

    Use it in a `with`, which starts the GPUs' processes and ends them; the compilers are the caller's to end.
    """

    def __init__(self, indices: Sequence[int], device: Device, crew: Crew) -> None:
        self.device = device
        self._indices, self._pool = indices, crew.compilers
        self._sampler = Sampler(indices)
        self._aside = ThreadPoolExecutor(len(indices) + 1)
        self._idle = True
        self.gpus = [GpuWorker(crew.bench(index)) for index in indices]

    def __enter__(self) -> Host:
        for gpu in self.gpus:
            gpu.start()
        self._sampler.start()
        self._aside.submit(self.versions)  # The driver's takes a while to be told.
        return self

    def __exit__(self, *_: object) -> None:
        self._aside.shutdown(wait=False, cancel_futures=True)
        for gpu in self.gpus:
            gpu.close()
        self._sampler.close()

    def begin(self, requests: Sequence[CompileRequest | Wanted]) -> Sequence[Future[Any]]:
        """Have the pool begin with these, in this order, before all that waits. The GPUs get ready for the first."""
        begun = self._pool.begin(requests)
        if self._idle and requests and isinstance(requests[0], CompileRequest):
            self._idle = False
            self.prepare(requests[0].problem)
        return begun

    def compile(
        self, requests: Sequence[CompileRequest], seconds: float | None
    ) -> Mapping[Config, Compiled | RequestFailed]:
        """What the pool makes of the requests."""
        found = self._pool.answers(requests, seconds)
        return {request.config: answer for request, answer in found.items()}

    def prepare(self, problem: Problem) -> None:
        """Have the GPUs' processes make its inputs."""
        for gpu in self.gpus:
            self._aside.submit(gpu.prepare, problem)

    def versions(self) -> Mapping[str, str]:
        return self._versions

    @cached_property
    def _versions(self) -> Mapping[str, str]:
        return machine.versions(self._indices[0])

    def observed(self) -> AbstractContextManager[Observation]:
        return self._sampler.observed()
