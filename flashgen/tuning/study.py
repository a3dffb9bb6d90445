"""Searching a space of configs for the fastest: whole where it is small, by Optuna's TPE where it is not.

The study lives in a journal file, so that it resumes where it stopped, killed or not, and opens in optuna-dashboard.
How a config is measured is the caller's matter.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import optuna
from optuna.trial import TrialState

from flashgen.runtime.config import Config
from flashgen.tuning.journal import open_journal
from flashgen.tuning.timing import Timing
from flashgen.tuning.worker import RequestFailed

optuna.logging.set_verbosity(optuna.logging.WARNING)

# Proposals in a row that were known already, after which a config that was not is taken at random.
STALE_PROPOSALS = 8

# The attribute of an Optuna trial that holds our own account of it; answers from memory have none.
ATTRIBUTE = "flashgen"


class Measure(Protocol):
    """Times a config; `best_us` is the best median so far, None at first. Raises RequestFailed."""

    def __call__(self, config: Config, best_us: float | None) -> Timing: ...


@dataclass(frozen=True)
class Budget:
    """When a search ends: after so many measurements, or so many seconds; None sets no limit."""

    trials: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Trial:
    """A config that was tried: its timing, or why there is none. `earlier` says that a previous run measured it."""

    config: Config
    timing: Timing | None
    failure: str = ""
    earlier: bool = False


@dataclass(frozen=True)
class Searched:
    """All trials, in the order in which they were made. `exhausted` says that no config of the space is left."""

    trials: tuple[Trial, ...]
    exhausted: bool

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
    measure: Measure,
    *,
    journal: Path | None = None,
    first: Sequence[Config] = (),
    budget: Budget = Budget(),
    seed: int = 0,
    watch: Callable[[Trial], None] = lambda trial: None,
) -> Searched:
    """Measure configs of `space` until the budget is spent or none is left.

    The configs `first` are tried before all others. With a `journal` the trials of an earlier run count: they are
    not measured again, and the budget's number of trials includes them; without one the study stays in memory.
    `watch` sees each new trial. An exception other than RequestFailed ends the search; the journal keeps what was
    learned.
    """
    choices = {name: sorted({getattr(config, name) for config in space}) for name in asdict(space[0])}
    study = optuna.create_study(
        # Trials over other choices would not fit this study, so the choices are its name.
        study_name=" ".join(f"{name}={','.join(map(str, values))}" for name, values in choices.items()),
        storage=open_journal(journal) if journal is not None else None,
        sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=min(10, max(4, len(space) // 10))),
        direction="minimize",
        load_if_exists=True,
    )
    state = _State(study, space, choices, seed)
    whole = budget.trials is None or budget.trials >= len(space)
    start = time.monotonic()
    state.enqueue([*first, *(space if whole else ())])
    while state.left and (budget.trials is None or len(state.known) < budget.trials):
        if budget.seconds is not None and state.known and time.monotonic() - start >= budget.seconds:
            break
        asked, config = state.propose()
        watch(state.settle(asked, config, _attempt(measure, config, state.best_us)))
    return Searched(tuple(state.known.values()), not state.left)


def _attempt(measure: Measure, config: Config, best_us: float | None) -> Trial:
    try:
        return Trial(config, measure(config, best_us))
    except RequestFailed as failure:
        return Trial(config, None, failure.reason)


class _State:
    """What a study knows of its space."""

    def __init__(
        self, study: optuna.Study, space: Sequence[Config], choices: Mapping[str, list[int]], seed: int
    ) -> None:
        self.study = study
        self.known: dict[Config, Trial] = {}
        self._space = dict.fromkeys(space)
        self._random = random.Random(seed)
        self._distributions: dict[str, optuna.distributions.BaseDistribution] = {
            name: optuna.distributions.CategoricalDistribution(values) for name, values in choices.items()
        }
        self.refresh()

    def refresh(self) -> None:
        """Take in what an earlier run, or another process on the same study, has measured."""
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)):
            if ATTRIBUTE in trial.user_attrs:
                config = Config(**trial.params)
                if config in self._space and config not in self.known:
                    self.known[config] = _restored(config, trial)

    @property
    def left(self) -> list[Config]:
        return [config for config in self._space if config not in self.known]

    @property
    def best_us(self) -> float | None:
        return min((trial.timing.median_us for trial in self.known.values() if trial.timing), default=None)

    def enqueue(self, configs: Iterable[Config]) -> None:
        for config in dict.fromkeys(configs):
            if config in self._space and config not in self.known:
                self.study.enqueue_trial(asdict(config))

    def propose(self) -> tuple[optuna.Trial, Config]:
        """A config of the space that is not known yet. What is known, or outside, is answered at once."""
        stale = 0
        while True:
            asked = self.study.ask(self._distributions)
            config = Config(**asked.params)
            if config in self.known:
                self._tell(asked, self.known[config])
            elif config not in self._space:
                self._tell(asked, Trial(config, None, "outside the space"))
            else:
                return asked, config
            stale += 1
            if stale >= STALE_PROPOSALS:
                self.enqueue([self._random.choice(self.left)])

    def settle(self, asked: optuna.Trial, config: Config, trial: Trial) -> Trial:
        asked.set_user_attr(ATTRIBUTE, {"failure": trial.failure, **(asdict(trial.timing) if trial.timing else {})})
        self._tell(asked, trial)
        self.known[config] = trial
        self.refresh()
        return trial

    def _tell(self, asked: optuna.Trial, trial: Trial) -> None:
        """A failed config is told as pruned: unlike a failed trial, the sampler learns from it to stay away."""
        if trial.timing is None:
            self.study.tell(asked, state=TrialState.PRUNED)
        else:
            self.study.tell(asked, trial.timing.median_us)


def _restored(config: Config, trial: optuna.trial.FrozenTrial) -> Trial:
    fields = dict(trial.user_attrs[ATTRIBUTE])
    failure = fields.pop("failure")
    return Trial(config, Timing(**fields) if fields else None, failure, earlier=True)
