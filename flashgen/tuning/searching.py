"""The loop of a search: each GPU, in a thread of its own, measures what the study proposes next.

A GPU that is lost fails at once, and would be through with a space before another GPU has measured anything. So the
study hears of a failure when the next config has run on that GPU. After some in a row one that is known to run must:
if it fails too, the failures say nothing of their configs, which are left to the other GPUs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import optuna

from flashgen.runtime.config import Config
from flashgen.tuning.proposals import Proposals
from flashgen.tuning.timing import Timing
from flashgen.tuning.trial import Trial
from flashgen.tuning.worker import RequestFailed

# How often to look whether another process is done with the last configs.
POLL_SECONDS = 0.2
# After so many failures in a row a GPU has to show that it still runs anything.
DOUBTFUL = 3


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


UNLIMITED = Budget()


@dataclass(frozen=True)
class Attempt:
    """A trial that Optuna began for us, and what became of it on one GPU."""

    asked: optuna.Trial
    trial: Trial


class Searching:
    """What the GPUs of one search share."""

    def __init__(self, proposals: Proposals, budget: Budget, watch: Callable[[Trial], None]) -> None:
        self._proposals, self._budget, self._watch = proposals, budget, watch
        self._start = time.monotonic()
        self._changed = threading.Condition()
        # GPUs that measure, or will without waiting for another one.
        self._working = 0
        self._error: BaseException | None = None

    def run(self, measures: Sequence[Measure]) -> None:
        """Measure until the budget is spent, nothing is left, or no GPU runs any more; raises what a GPU raised."""
        self._working = len(measures)
        threads = [threading.Thread(target=self._guarded, args=(measure,), daemon=True) for measure in measures[1:]]
        for thread in threads:
            thread.start()
        self._guarded(measures[0])
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def _guarded(self, measure: Measure) -> None:
        untold: list[Attempt] = []
        try:
            try:
                self._work(measure, untold)
            finally:
                self._leave(untold)
        except BaseException as error:  # noqa: BLE001 - it ends the other workers and is raised when they are done
            self._error = self._error or error

    def _work(self, measure: Measure, untold: list[Attempt]) -> None:
        """Measure on one GPU until the search is over. `untold` is what failed and the study has not been told of."""
        while self._error is None:
            proposed = self._next(waits=not untold)
            if proposed is not None:
                untold.append(self._attempt(measure, *proposed))
            if not untold:
                return
            failed = untold[-1].trial.timing is None
            if failed and proposed is not None and len(untold) < DOUBTFUL:
                continue
            if failed and self._is_lost(measure):
                return
            self._settle(untold)

    def _next(self, waits: bool) -> tuple[optuna.Trial, Config] | None:
        """What to measure next. Where there is nothing, it `waits` for what others have begun: it may be left to us."""
        with self._changed:
            proposed = self._proposed()
            if proposed is None and waits:
                with self._idle():
                    while proposed is None and self._may_come():
                        self._changed.wait(POLL_SECONDS)
                        proposed = self._proposed()
        return proposed

    def _proposed(self) -> tuple[optuna.Trial, Config] | None:
        return None if self._is_over() else self._proposals.next()

    def _may_come(self) -> bool:
        """Whether another GPU, or another process, is at what it may not finish."""
        return self._error is None and (self._proposals.measuring or (self._proposals.awaited and not self._is_over()))

    def _is_over(self) -> bool:
        proposals, budget = self._proposals, self._budget
        if self._error is not None:
            return True
        if budget.trials is not None and proposals.begun >= budget.trials:
            return True
        late = budget.seconds is not None and time.monotonic() - self._start >= budget.seconds
        return late and proposals.begun >= budget.least

    def _attempt(self, measure: Measure, asked: optuna.Trial, config: Config) -> Attempt:
        with self._changed:
            best_us = self._proposals.best_us
        try:
            return Attempt(asked, _tried(measure, config, best_us))
        except BaseException:
            with self._changed:
                self._proposals.release(asked, config)
            raise

    def _settle(self, attempts: list[Attempt]) -> None:
        """Tell the study of them all."""
        with self._changed:
            while attempts:
                self._proposals.settle(attempts[0].asked, attempts[0].trial)
                self._watch(attempts.pop(0).trial)
            self._changed.notify_all()

    def _leave(self, attempts: list[Attempt]) -> None:
        """End the work of one GPU; what it has not told the study of is left to the others."""
        with self._changed:
            self._working -= 1
            self._changed.notify_all()
            for attempt in attempts:
                self._proposals.release(attempt.asked, attempt.trial.config)

    @contextmanager
    def _idle(self) -> Iterator[None]:
        """A time in which a GPU has nothing to do, with the lock held."""
        self._working -= 1
        self._changed.notify_all()
        try:
            yield
        finally:
            self._working += 1

    def _is_lost(self, measure: Measure) -> bool:
        """Whether a GPU on which nothing has run lately fails with a config that is known to run, too."""
        with self._changed, self._idle():
            while not self._proposals.times_us and self._working and self._error is None:
                self._changed.wait(POLL_SECONDS)
            times_us, broken_off = self._proposals.times_us, self._error is not None
        if broken_off or not times_us:
            return broken_off
        return _tried(measure, min(times_us, key=times_us.__getitem__), None).timing is None


def _tried(measure: Measure, config: Config, best_us: float | None) -> Trial:
    try:
        return Trial(config, measure(config, best_us))
    except RequestFailed as failure:
        return Trial(config, None, failure.reason)
