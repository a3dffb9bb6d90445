"""Tuning a generated module on the GPUs at hand: what `flashgen tune` and `flashgen build` call."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flashgen.codegen import load_module, scheduled_kernels
from flashgen.errors import TuningFailed
from flashgen.runtime.config import KERNELS, Config
from flashgen.runtime.lookup import forget, shipped_root, user_root
from flashgen.spec.variant import TuneShape, Variant
from flashgen.tuning import machine
from flashgen.tuning.host import Host
from flashgen.tuning.outcome import Outcome
from flashgen.tuning.presets import chosen
from flashgen.tuning.session import Options, Session
from flashgen.tuning.trial import Trial
from flashgen.tuning.workloads import Workload, problems, workloads

# How a run's time is shared among its workloads.
WEIGHTS = {"forward": 2.0, "backward_q": 1.0, "backward_kv": 1.0}


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
    shapes: Sequence[TuneShape] | None = None,
    dtypes: Sequence[str] | None = None,
    kernels: Sequence[str] = KERNELS,
    preset: str = "default",
    trials: int | None = None,
    budget_seconds: float | None = None,
    exhaustive: bool = False,
    gpus: Sequence[int] | None = (0,),
    storage: str | None = None,
    force: bool = False,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> tuple[Outcome, ...]:
    """Find and record the best config of each kernel for each dtype, head dimension and shape of a variant.

    A workload that has a record is left alone unless `force`. `trials` (for each workload) and `budget_seconds`
    (for all) take the place of the preset's; `exhaustive` times the whole space, hopeless configs included. `gpus`
    are the indices of the GPUs that share the work, None for all; `storage` is the URL of a database in which other
    hosts with this GPU model join the same studies. Raises EnvironmentProblem without a GPU, UsageError for GPUs of
    different models, TuningFailed where no config of some workload worked; the records of the others are kept.
    """
    effort = chosen(preset, trials, budget_seconds, exhaustive)
    indices, at_hand = machine.gpus_at_hand(gpus)
    identity = load_module(module_path).IDENTITY
    tasks = workloads(problems(variant, shapes, dtypes), identity, at_hand, kernels)
    roots = (user_root(), shipped_root(module_path))
    watcher = _Watcher([WEIGHTS[task.key.kernel] for task in tasks], effort.seconds, progress)
    options = Options(scheduled_kernels(variant), seed, storage, force)
    outcomes: list[Outcome] = []
    with Host(variant, module_path, indices, at_hand) as tools:
        session = Session(tools, effort, roots, options, watcher.trial)
        for place, task in enumerate(tasks):
            outcomes.append(session.existing(task) or session.tune(task, watcher.begin(place)))
    forget()
    lost = [str(outcome) for outcome in outcomes if outcome.record is None]
    if lost:
        raise TuningFailed(f"{variant.name} on {at_hand.gpu}: {'; '.join(lost)}; expected one config that runs")
    return tuple(outcomes)


class _Watcher:
    """Shares the time among the workloads, and tells of each trial."""

    def __init__(
        self, weights: Sequence[float], seconds: float | None, progress: Callable[[Progress], None] | None
    ) -> None:
        self._weights, self._progress = weights, progress
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
