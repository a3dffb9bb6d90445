"""What tuning needs of the machine; tests give it a fake one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Protocol

from flashgen.codegen.rehearsal import Wanted
from flashgen.problems.problem import Problem
from flashgen.runtime.config import Config
from flashgen.runtime.records import Device
from flashgen.tuning.clocks import Observation
from flashgen.tuning.outcome import Work
from flashgen.tuning.prune import Compiled, CompileRequest
from flashgen.tuning.timing import Timing
from flashgen.tuning.worker import RequestFailed
from flashgen.tuning.workloads import Workload


class Gpu(Protocol):
    """One GPU. Every method raises RequestFailed."""

    def time(self, workload: Workload, config: Config, milliseconds: float, best_us: float | None) -> Timing: ...

    def rehearse(self, workload: Workload, config: Config) -> Sequence[Wanted]:
        """What proving a config would have to compile."""

    def prove(self, workload: Workload, config: Config) -> str:
        """What is wrong with a config, empty if nothing is."""

    def outliers(self, workload: Workload, configs: Sequence[Config], arbiter: Config) -> Mapping[Config, str]:
        """Which of these configs compute something else than the others, with what differs; see `concord`."""

    def work(self, workload: Workload) -> Work: ...


class Tools(Protocol):
    """A host: its GPUs, all of the model `device`, and its compilers."""

    @property
    def device(self) -> Device: ...

    @property
    def gpus(self) -> Sequence[Gpu]: ...

    def begin(self, requests: Sequence[CompileRequest | Wanted]) -> Sequence[Future[Any]]:
        """Have the compilers begin with what `compile` will ask for, or a launch, in this order, before what waits."""

    def prepare(self, problem: Problem) -> None:
        """Have the GPUs' processes make a problem's inputs, while the compilers work."""

    def compile(
        self, requests: Sequence[CompileRequest], seconds: float | None
    ) -> Mapping[Config, Compiled | RequestFailed]: ...

    def versions(self) -> Mapping[str, str]: ...

    def observed(self) -> AbstractContextManager[Observation]:
        """Watch the GPUs' clocks while they are measured."""
