"""Tuning a generated module on the GPUs at hand: what `flashgen tune` and `flashgen build` call."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashgen.codegen import default_of, load_module, scheduled_kernels
from flashgen.errors import TuningFailed
from flashgen.runtime.config import Config
from flashgen.runtime.lookup import forget
from flashgen.runtime.record_folders import shipped_in
from flashgen.runtime.registry import TUNED
from flashgen.spec.variant import TuneShape, Variant
from flashgen.tuning import machine
from flashgen.tuning.crew import Crew
from flashgen.tuning.host import Host
from flashgen.tuning.outcome import Outcome
from flashgen.tuning.presets import chosen
from flashgen.tuning.session import Options, Session
from flashgen.tuning.storage import opened_storage
from flashgen.tuning.stored import user_folder
from flashgen.tuning.trial import Trial
from flashgen.tuning.workloads import Workload, problems, workloads

# How a run's time is shared among its workloads, and the first one's share beside that, as a part of all.
WEIGHTS = {"forward": 2.0}
HEAD_START = 0.2


@dataclass(frozen=True)
class Progress:
    """Where a tuning run stands: `what` is number `workload` of `workloads` (from 1), and what is known of it."""

    what: Workload
    workload: int
    workloads: int
    tried: int
    dropped: int
    failed: int
    best: Config | None
    best_us: float | None
    seconds_left: float | None

    def __str__(self) -> str:
        best = "nothing yet"
        if self.best is not None:
            best = f"best {self.best_us:.1f} us ({self.best.label})"
        left = "" if self.seconds_left is None else f", {self.seconds_left:.0f} s left"
        counts = f"{self.tried} tried, {self.dropped} dropped, {self.failed} failed"
        return f"[{self.workload}/{self.workloads}] {self.what}: {best}, {counts}{left}"


def tune(
    variant: Variant,
    module_path: Path,
    *,
    progress: Callable[[Progress], None] | None = None,
    done: Callable[[Outcome], None] = lambda outcome: None,
    **options: Any,
) -> tuple[Outcome, ...]:
    """Find and record the best configs of a variant; see `Tuner`, which takes these options, and its `run`."""
    with Tuner(variant, module_path, **options) as tuner:
        return tuner.run(progress, done)


class Tuner:
    """Finds and records the best config of each kernel for each dtype, head dimension and shape of a variant.

    `modes` are forms of call whose shapes alone are tuned, as in `workloads.problems`. A workload that has a record is
    left alone unless `force`. `trials` (for each workload) and `budget_seconds`
    (for all) take the place of the preset's; `exhaustive` times the whole space, hopeless configs included. `gpus`
    are the indices of the GPUs that share the work, None for all; `storage` is the URL of a database in which other
    hosts with this GPU model join the same studies. `crew` are the module's processes, which stay the caller's;
    without one there are some as long as the tuner is entered. Entering it starts those of the GPUs; `prepare` has the
    compilers begin, `run` does the rest.

    Raises EnvironmentProblem without a GPU, UsageError for GPUs of different models.
    """

    def __init__(
        self,
        variant: Variant,
        module_path: Path,
        *,
        shapes: Sequence[TuneShape] | None = None,
        dtypes: Sequence[str] | None = None,
        modes: Sequence[str] | None = None,
        kernels: Sequence[str] = TUNED,
        preset: str = "default",
        trials: int | None = None,
        budget_seconds: float | None = None,
        exhaustive: bool = False,
        gpus: Sequence[int] | None = (0,),
        storage: str | None = None,
        force: bool = False,
        seed: int = 0,
        crew: Crew | None = None,
    ) -> None:
        self._name = variant.name
        self._effort = chosen(preset, trials, budget_seconds, exhaustive)
        indices, self._device = machine.gpus_at_hand(gpus)
        identity = load_module(module_path).IDENTITY
        self._tasks = workloads(
            problems(variant, shapes, dtypes, modes), identity, self._device, kernels, variant.dropout is not None
        )
        self._open = ExitStack()
        crew = crew or self._open.enter_context(Crew(variant, module_path, indices))
        self._tools = Host(indices, self._device, crew)
        folders = (user_folder(variant.name), shipped_in(Path(module_path)))
        defaults = {kernel: default_of(variant, kernel) for kernel in (task.key.kernel for task in self._tasks)}
        options = Options(scheduled_kernels(variant), defaults, seed, storage, force, not variant.allow_tf32)
        self._session = Session(self._tools, self._effort, folders, options, self._watch)
        self._watcher: _Watcher | None = None
        self._storage = storage
        self._found = {task: found for task in self._tasks if (found := self._session.existing(task)) is not None}

    def __enter__(self) -> Tuner:
        with ExitStack() as failing:
            failing.push(self._open)
            if len(self._found) < len(self._tasks):
                if self._storage is not None:  # Whether it can be used is said before anything is compiled.
                    with opened_storage(self._storage):
                        pass
                self._open.enter_context(self._tools)
            failing.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def prepare(self) -> None:
        """Begin to compile what the searches will ask for, and return at once."""
        self._session.prepare([task for task in self._tasks if task not in self._found])

    def run(
        self,
        progress: Callable[[Progress], None] | None = None,
        done: Callable[[Outcome], None] = lambda outcome: None,
    ) -> tuple[Outcome, ...]:
        """Search; TuningFailed where no config of some workload worked: the records of the others are kept.

        `done` sees each outcome as soon as there is one, also where an error follows, and a second one where what won
        for others turned out to be worth a look.
        """
        missing = [task for task in self._tasks if task not in self._found]
        self._watcher = _Watcher(
            [WEIGHTS.get(task.key.kernel, 1.0) for task in missing], self._effort.seconds, progress
        )
        outcomes = dict(self._found)
        for outcome in outcomes.values():
            done(outcome)
        for outcome in self._session.tune_each(missing, self._watcher.begin):
            outcomes[outcome.workload] = outcome
            done(outcome)
        for task in missing:
            before, outcomes[task] = outcomes[task], self._session.look_again(outcomes[task])
            if outcomes[task] is not before:
                done(outcomes[task])
        forget()
        lost = [str(outcome) for outcome in outcomes.values() if outcome.record is None]
        if lost:
            raise TuningFailed(f"{self._name} on {self._device.gpu}: {'; '.join(lost)}; expected one config that runs")
        return tuple(outcomes[task] for task in self._tasks)

    def _watch(self, workload: Workload, trial: Trial, dropped: int) -> None:
        if self._watcher is not None:
            self._watcher.trial(workload, trial, dropped)


class _Watcher:
    """Shares the time among the workloads, and tells of each trial."""

    def __init__(
        self, weights: Sequence[float], seconds: float | None, progress: Callable[[Progress], None] | None
    ) -> None:
        # The first waits until the compilers are ahead.
        first = HEAD_START * sum(weights)
        self._weights, self._progress = [weight + first * (not i) for i, weight in enumerate(weights)], progress
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._place, self._trials = 0, list[Trial]()

    def begin(self, place: int) -> float | None:
        """The seconds that workload number `place` may take: its share of what is left."""
        self._place, self._trials = place, []
        left = self._left()
        return None if left is None else left * self._weights[place] / sum(self._weights[place:])

    def trial(self, workload: Workload, trial: Trial, dropped: int) -> None:
        self._trials.append(trial)
        if self._progress is not None:
            timed = [(t.timing.median_us, t.config) for t in self._trials if t.timing is not None]
            best_us, best = min(timed, key=lambda entry: entry[0], default=(None, None))
            counts = (len(self._trials), dropped, len(self._trials) - len(timed))
            place = (self._place + 1, len(self._weights))
            self._progress(Progress(workload, *place, *counts, best, best_us, self._left()))

    def _left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
