"""Which config of a space may be the fastest, as a sampler of Optuna's kind.

Two proposals of three come from a model of the speed of configs, which needs few measurements; the third is TPE's,
which believes in no model. Optuna's own Gaussian process, which knows nothing of kernels beforehand, needs more
measurements on the tables in tests/tuning/data and on those of `tests/tuning/synthetic.py`, and scipy.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from flashgen.runtime.config import Config
from flashgen.tuning.surrogate import most_promising

# Proposals in a row that were known already, after which a config that was not is taken at random.
STALE_PROPOSALS = 8
TPE_TURN = 3


class Seen(Protocol):
    """What is known of a space."""

    @property
    def left(self) -> list[Config]:
        """Configs that nobody has measured, or measures now."""
        ...

    @property
    def begun(self) -> int:
        """How many have been measured, or are by this process now."""
        ...

    @property
    def times_us(self) -> Mapping[Config, float]:
        """Medians of those that have one."""
        ...

    def params(self, config: Config) -> dict[str, Any]:
        """A config as the study has it."""
        ...


class SpeedSampler(BaseSampler):
    """Proposes configs of a space, of which `seen` says what is known. A trial with fixed params keeps these."""

    def __init__(self, seen: Seen, space: Mapping[str, BaseDistribution], startup: int, seed: int) -> None:
        self._seen, self._space = seen, dict(space)
        self._tpe, self._random = TPESampler(seed=seed, n_startup_trials=startup), random.Random(seed)
        self._begun = self._repeated = 0

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Every axis: a config is proposed as a whole."""
        return self._space

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The params of a config that is left; none where it is TPE's turn, or too little is known to tell."""
        if "fixed_params" in trial.system_attrs:
            return {}
        config = self._ahead(self._seen.left)
        return {} if config is None else self._seen.params(config)

    def _ahead(self, left: Sequence[Config]) -> Config | None:
        begun = self._seen.begun
        self._repeated = self._repeated + 1 if begun == self._begun else 0
        self._begun = begun
        if left and self._repeated >= STALE_PROPOSALS:
            return self._random.choice(left)
        return most_promising(self._seen.times_us, left) if (begun + 1) % TPE_TURN else None

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """TPE's value for one axis."""
        return self._tpe.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._tpe.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        self._tpe.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        self._tpe.reseed_rng()
        self._random.seed()
