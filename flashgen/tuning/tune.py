"""Tuning a generated module on the GPU at hand: what `flashgen tune` and `flashgen build` call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flashgen.codegen import load_module, uses_schedule
from flashgen.errors import TuningFailed
from flashgen.problems import Problem
from flashgen.runtime.config import Config
from flashgen.runtime.defaults import default_config
from flashgen.runtime.lookup import forget, shipped_root, user_root
from flashgen.runtime.records import Device
from flashgen.spec.variant import TuneShape, Variant
from flashgen.tuning import machine
from flashgen.tuning.measure import ProofRequest, TimeRequest
from flashgen.tuning.presets import chosen
from flashgen.tuning.prune import Compiled, CompilePool, CompileRequest
from flashgen.tuning.session import Outcome, Session
from flashgen.tuning.study import Trial
from flashgen.tuning.timing import Timing
from flashgen.tuning.worker import RequestFailed, Worker
from flashgen.tuning.workloads import Workload, problems, workloads

# A request that takes longer has hung: compiling takes most of it, one launch at the largest problems the rest.
TRIAL_SECONDS = 60.0


@dataclass(frozen=True)
class Progress:
    """Where a tuning run stands: `workload` of `workloads` (from 1), and what is known of it."""

    problem: Problem
    workload: int
    workloads: int
    tried: int
    failed: int
    best_us: float | None
    seconds_left: float | None

    def __str__(self) -> str:
        best = "nothing yet" if self.best_us is None else f"best {self.best_us:.1f} us"
        left = "" if self.seconds_left is None else f", {self.seconds_left:.0f} s left"
        return (
            f"[{self.workload}/{self.workloads}] {self.problem}: {best}, {self.tried} tried, {self.failed} failed{left}"
        )


def tune(
    variant: Variant,
    module_path: Path,
    *,
    shapes: Sequence[TuneShape] | None = None,
    dtypes: Sequence[str] | None = None,
    preset: str = "default",
    trials: int | None = None,
    budget_seconds: float | None = None,
    device: int = 0,
    force: bool = False,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> tuple[Outcome, ...]:
    """Find and record the best config for each dtype, head dimension and shape of a variant.

    A workload that has a record is left alone unless `force`. `trials` (for each workload) and `budget_seconds`
    (for all) take the place of the preset's. Raises EnvironmentProblem without a GPU, TuningFailed where no config
    of some workload worked; the records of the others are kept.
    """
    effort = chosen(preset, trials, budget_seconds)
    at_hand = machine.gpu_at_hand(device)
    identity = load_module(module_path).IDENTITY
    tasks = workloads(problems(variant, shapes, dtypes), identity, at_hand)
    roots = (user_root(), shipped_root(module_path))
    watcher = _Watcher(len(tasks), effort.seconds, progress)
    outcomes: list[Outcome] = []
    with Machine(variant, module_path, device, at_hand) as tools:
        session = Session(
            tools, effort, default_config, roots, scheduled=uses_schedule(variant), seed=seed, watch=watcher.trial
        )
        for place, task in enumerate(tasks):
            found = None if force else session.existing(task)
            outcomes.append(found or session.tune(task, watcher.begin(place), force))
    forget()
    lost = [str(outcome) for outcome in outcomes if outcome.record is None]
    if lost:
        raise TuningFailed(f"{variant.name} on {at_hand.gpu}: {'; '.join(lost)}; expected one config that runs")
    return tuple(outcomes)


class Machine:
    """The real `Tools`: one worker process for the GPU, a pool of them for the compiler; both start when needed."""

    def __init__(self, variant: Variant, module_path: Path, index: int, device: Device) -> None:
        self.device = device
        self._index = index
        path = str(Path(module_path).resolve())
        self._gpu = Worker("flashgen.tuning.measure:KernelBench", path, variant, index)
        self._pool = CompilePool("flashgen.tuning.prune:compiler", path, device.capability)

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self._gpu.close()
        self._pool.close()

    def time(self, problem: Problem, config: Config, milliseconds: float, best_us: float | None) -> Timing:
        return self._gpu.ask(TimeRequest(problem, config, milliseconds, best_us), TRIAL_SECONDS)

    def prove(self, problem: Problem, config: Config) -> str:
        return self._gpu.ask(ProofRequest(problem, config), TRIAL_SECONDS)

    def compile(self, requests: Sequence[CompileRequest], seconds: float) -> Mapping[Config, Compiled | RequestFailed]:
        self._gpu.start()  # It gets ready while the pool works.
        return self._pool.compile(requests, seconds)

    def versions(self) -> Mapping[str, str]:
        return machine.versions(self._index)

    def state(self) -> Mapping[str, float]:
        return machine.gpu_state(self._index)


class _Watcher:
    """Shares the time among the workloads, and tells of each trial."""

    def __init__(self, workloads: int, seconds: float | None, progress: Callable[[Progress], None] | None) -> None:
        self._workloads, self._progress = workloads, progress
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._place, self._trials = 0, list[Trial]()

    def begin(self, place: int) -> float | None:
        """The seconds that workload number `place` may take: an equal share of what is left."""
        self._place, self._trials = place, []
        left = self._left()
        return None if left is None else left / (self._workloads - place)

    def trial(self, workload: Workload, trial: Trial) -> None:
        self._trials.append(trial)
        if self._progress is not None:
            timed = [t.timing.median_us for t in self._trials if t.timing is not None]
            failed = len(self._trials) - len(timed)
            best = min(timed, default=None)
            place = (self._place + 1, self._workloads)
            self._progress(Progress(workload.problem, *place, len(self._trials), failed, best, self._left()))

    def _left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
