"""Which config of a space is measured next, as an Optuna study that several workers may share.

The study asks its sampler; what was asked for first comes before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState

from flashgen.runtime.config import Config
from flashgen.tuning.claims import CLAIM, Watch, claim
from flashgen.tuning.sampler import SpeedSampler
from flashgen.tuning.storage import STRANGE, forgotten, not_ours, strange_errors
from flashgen.tuning.timing import Timing
from flashgen.tuning.trial import Trial

# The attribute of an Optuna trial that holds our own account of it; answers from memory have none.
ATTRIBUTE = "flashgen"

MEASURED = (TrialState.COMPLETE, TrialState.PRUNED)

# After so many in a row that are not like ours a study is taken for useless; each is passed over once.
MOST_STRANGE = 30


class Proposals:
    """What a study knows of its space, and what comes next. Not for several threads at once."""

    def __init__(
        self, study: optuna.Study, space: Sequence[Config], choices: Mapping[str, list[Any]], seed: int
    ) -> None:
        self.study = study
        self.known: dict[Config, Trial] = {}
        self._space = dict.fromkeys(space)
        self._mine: set[Config] = set()
        self._others: dict[Config, int] = {}
        self._watch = Watch()
        self._numbers: set[int] = set()
        self._forgotten = forgotten(study)
        self.distributions: dict[str, optuna.distributions.BaseDistribution] = {
            name: optuna.distributions.CategoricalDistribution(values) for name, values in choices.items()
        }
        self._by_params = {frozenset(config.as_dict().items()): config for config in self._space}
        study.sampler = SpeedSampler(self, self.distributions, min(10, max(4, len(space) // 10)), seed)
        self.refresh()

    def refresh(self) -> None:
        """Take in what an earlier run, or another process on the same study, has measured or measures now."""
        self._others = {}
        for trial in _trials(self.study):
            config = self._config(trial)
            if config is None or config in self.known or trial.number in self._forgotten:
                continue
            if ATTRIBUTE in trial.user_attrs and trial.state in MEASURED:
                self._restore(config, trial)
            elif (
                trial.state == TrialState.RUNNING and trial.number not in self._numbers and self._watch.is_alive(trial)
            ):
                self._others.setdefault(config, trial.number)

    def remember(self, other: optuna.Study) -> None:
        """Take in what a study over other choices has of this space, as one of another preset has."""
        skipped = forgotten(other)
        for trial in _trials(other, MEASURED):
            config = self._named(trial.params)
            if config is not None and config not in self.known and trial.number not in skipped:
                self._restore(config, trial)

    def _restore(self, config: Config, trial: optuna.trial.FrozenTrial) -> None:
        restored = _restored(config, trial)
        if restored is not None:
            self.known[config] = restored

    def _config(self, trial: optuna.trial.FrozenTrial) -> Config | None:
        """The config of a trial; None for one that is not of this space. One that has just begun may lack params."""
        params = trial.system_attrs.get("fixed_params", trial.params)
        if not isinstance(params, Mapping) or set(params) != set(self.distributions):
            return None
        return self._named(params)

    def _named(self, params: Mapping[str, Any]) -> Config | None:
        """The config of the space that has these params; None where there is none."""
        try:
            return self._by_params.get(frozenset((name, each) for name, each in params.items() if each is not None))
        except TypeError:  # A list, which is no value of any axis.
            return None

    def params(self, config: Config) -> dict[str, Any]:
        """A config as the study has it: None for an axis that other configs of the space have."""
        values = config.as_dict()
        return {name: values.get(name) for name in self.distributions}

    @property
    def left(self) -> list[Config]:
        """Configs that nobody has measured, or measures now."""
        taken = (self.known, self._mine, self._others)
        return [config for config in self._space if not any(config in some for some in taken)]

    @property
    def awaited(self) -> bool:
        """Whether another process measures something that this one does not know yet."""
        return bool(self._others)

    @property
    def measuring(self) -> bool:
        """Whether this process measures something now."""
        return bool(self._mine)

    @property
    def begun(self) -> int:
        """How many are known or measured by this process now."""
        return len(self.known) + len(self._mine)

    @property
    def times_us(self) -> dict[Config, float]:
        """The medians of what has one."""
        return {config: trial.timing.median_us for config, trial in self.known.items() if trial.timing}

    @property
    def best_us(self) -> float | None:
        return min(self.times_us.values(), default=None)

    def enqueue(self, configs: Iterable[Config]) -> None:
        """Put configs before all that is proposed otherwise."""
        waiting = [trial.system_attrs.get("fixed_params") for trial in _trials(self.study, (TrialState.WAITING,))]
        for config in dict.fromkeys(configs):
            free = config in self._space and config not in self.known and config not in self._others
            if free and self.params(config) not in waiting:
                with strange_errors():
                    self.study.enqueue_trial(self.params(config))

    def next(self) -> tuple[optuna.Trial, Config] | None:
        """A config of what is left; None where nothing is."""
        strange = 0
        while True:
            self.refresh()
            if not self.left:
                return None
            try:
                asked = self.study.ask(self.distributions)
            except STRANGE as error:
                strange += 1
                if strange > MOST_STRANGE:
                    raise not_ours(error) from None
                continue
            config = self._named(asked.params)
            if config is not None and self._claim(asked, config):
                return asked, config
            self._answer(asked, config)

    def _claim(self, asked: optuna.Trial, config: Config) -> bool:
        """Make a config this process's own, unless it is none of what is left: of two processes that begin the same
        config at the same moment the one with the lower trial number has it."""
        with strange_errors():
            asked.set_user_attr(CLAIM, claim())
        self._numbers.add(asked.number)
        self.refresh()
        if config in self.known or config in self._mine or self._others.get(config, asked.number) < asked.number:
            return False
        self._mine.add(config)
        return True

    def settle(self, asked: optuna.Trial, trial: Trial) -> None:
        """Tell the study what became of a config."""
        account = {"failure": trial.failure, **(asdict(trial.timing) if trial.timing else {})}
        with strange_errors():
            asked.set_user_attr(ATTRIBUTE, account)
        self._tell(asked, trial.timing)
        self._mine.discard(trial.config)
        self.known[trial.config] = trial

    def release(self, asked: optuna.Trial, config: Config) -> None:
        """Leave a config to whoever asks next: its measurement was broken off or says nothing of it."""
        self._mine.discard(config)
        # Another error may be under way, which says more.
        with suppress(StorageInternalError, OSError), strange_errors():
            self.study.tell(asked, state=TrialState.FAIL)
            self.enqueue([config])

    def _answer(self, asked: optuna.Trial, config: Config | None) -> None:
        """Settle a proposal that needs no measurement: it is outside the space (None), known, or being measured."""
        if config is None:
            self._tell(asked, None)
        elif config in self.known:
            self._tell(asked, self.known[config].timing)
        else:
            with strange_errors():
                self.study.tell(asked, state=TrialState.FAIL)

    def _tell(self, asked: optuna.Trial, timing: Timing | None) -> None:
        """A config without a time is told as pruned: unlike a failed trial, the sampler learns to stay away."""
        with strange_errors():
            if timing is None:
                self.study.tell(asked, state=TrialState.PRUNED)
            else:
                self.study.tell(asked, timing.median_us)


def _trials(study: optuna.Study, states: Sequence[TrialState] | None = None) -> list[optuna.trial.FrozenTrial]:
    with strange_errors():
        return study.get_trials(deepcopy=False, states=states)


def _restored(config: Config, trial: optuna.trial.FrozenTrial) -> Trial | None:
    """What we said of a trial; None where another version of flashgen, or somebody else, said it in another way."""
    try:
        fields = dict(trial.user_attrs[ATTRIBUTE])
        failure = fields.pop("failure")
        timing = Timing(**fields) if fields else None
    except (KeyError, TypeError, ValueError):
        return None
    known = isinstance(failure, str) and bool(failure) == (timing is None)
    return Trial(config, timing, failure) if known and (timing is None or timing.is_possible) else None
