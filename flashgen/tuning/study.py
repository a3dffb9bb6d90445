"""Searching a space of configs for the fastest: whole where it is small, in part where it is not.

The study lives in a journal file or a database, so that it resumes where it stopped, killed or not, is shared by
several workers, and opens in optuna-dashboard. How a config is measured is the caller's matter.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import optuna

from flashgen.runtime.config import Config
from flashgen.tuning.proposals import Proposals
from flashgen.tuning.storage import Place, opened_study
from flashgen.tuning.timing import Timing
from flashgen.tuning.trial import Trial
from flashgen.tuning.worker import RequestFailed

# How often to look whether another process is done with the last configs.
POLL_SECONDS = 0.2

optuna.logging.set_verbosity(optuna.logging.WARNING)


class Measure(Protocol):
    """Times a config; `best_us` is the best median so far, None at first. Raises RequestFailed."""

    def __call__(self, config: Config, best_us: float | None) -> Timing: ...


@dataclass(frozen=True)
class Budget:
    """When a search ends: after so many measurements, or so many seconds; None sets no limit.

    Seconds end no search before its first `least` measurements.
    """

    trials: int | None = None
    seconds: float | None = None
    least: int = 1


@dataclass(frozen=True)
class Searched:
    """All trials, in the order in which they were made."""

    trials: tuple[Trial, ...]

    @property
    def ranking(self) -> list[Trial]:
        """The trials with a timing, the fastest first."""
        timed = [(trial.timing.median_us, place, trial) for place, trial in enumerate(self.trials) if trial.timing]
        return [trial for _, _, trial in sorted(timed, key=lambda entry: entry[:2])]

    @property
    def failed(self) -> Mapping[str, int]:
        return dict(Counter(trial.failure for trial in self.trials if trial.timing is None))


def search(
    space: Sequence[Config],
    measures: Sequence[Measure],
    *,
    place: Place | None = None,
    name: str = "",
    whole: Sequence[Config] = (),
    first: Sequence[Config] = (),
    budget: Budget = Budget(),
    seed: int = 0,
    watch: Callable[[Trial], None] = lambda trial: None,
) -> Searched:
    """Measure configs of `space` until the budget is spent or none is left. Studies of parts of one `whole` are one.

    Each of `measures`, one for each GPU, works in a thread of its own on the same study. The configs `first` are
    tried before all others. With a `place` (a journal's path or a database's URL) the trials of earlier runs, and of
    other hosts on the studies of this `name`, count, whatever else was in their space: they are not measured again,
    and the budget's number of trials includes them; without one the study stays in memory. `watch` sees each new
    trial. An exception other than RequestFailed ends the search; the study keeps what was learned.
    """
    choices = choices_of([*space, *whole])
    text = " ".join(f"{field}={','.join(map(str, values))}" for field, values in choices.items())
    with opened_study(place, name, text) as (study, others):
        proposals = Proposals(study, space, choices, seed)
        for other in others:
            proposals.remember(other)
        is_all = budget.trials is None or budget.trials >= len(space)
        proposals.enqueue([*first, *(space if is_all else ())])
        _Search(proposals, budget, watch).run(measures)
    return Searched(tuple(proposals.known.values()))


def choices_of(space: Sequence[Config]) -> dict[str, list[Any]]:
    """What a space has of each field, in order; None, last, stands for configs without it."""
    flat = [config.as_dict() for config in space]
    names = dict.fromkeys(name for config in flat for name in config)
    found = {name: {config.get(name) for config in flat} for name in names}
    return {name: sorted(values, key=lambda value: (value is None, value)) for name, values in found.items()}


class _Search:
    """The loop that each worker goes through."""

    def __init__(self, proposals: Proposals, budget: Budget, watch: Callable[[Trial], None]) -> None:
        self._proposals, self._budget, self._watch = proposals, budget, watch
        self._start = time.monotonic()
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def run(self, measures: Sequence[Measure]) -> None:
        threads = [threading.Thread(target=self._guarded, args=(measure,), daemon=True) for measure in measures[1:]]
        for thread in threads:
            thread.start()
        self._guarded(measures[0])
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def _guarded(self, measure: Measure) -> None:
        try:
            self._work(measure)
        except BaseException as error:  # noqa: BLE001 - it ends the other workers and is raised when they are done
            self._error = self._error or error

    def _work(self, measure: Measure) -> None:
        while True:
            with self._lock:
                if self._is_over():
                    return
                proposed = self._proposals.next()
                best_us = self._proposals.best_us
            if proposed is not None:
                asked, config = proposed
                try:
                    trial = _attempt(measure, config, best_us)
                except BaseException:
                    with self._lock:
                        self._proposals.release(asked)
                    raise
                with self._lock:
                    self._proposals.settle(asked, trial)
                    self._watch(trial)
            elif self._proposals.awaited:
                time.sleep(POLL_SECONDS)
            else:
                return

    def _is_over(self) -> bool:
        proposals, budget = self._proposals, self._budget
        if self._error is not None:
            return True
        if budget.trials is not None and proposals.begun >= budget.trials:
            return True
        late = budget.seconds is not None and time.monotonic() - self._start >= budget.seconds
        return late and proposals.begun >= budget.least


def _attempt(measure: Measure, config: Config, best_us: float | None) -> Trial:
    try:
        return Trial(config, measure(config, best_us))
    except RequestFailed as failure:
        return Trial(config, None, failure.reason)
