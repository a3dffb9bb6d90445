"""Searching a space of configs for the fastest: whole where it is small, in part where it is not.

The study lives in a journal file or a database, so that it resumes where it stopped, killed or not, is shared by
several workers, and opens in optuna-dashboard. How a config is measured is the caller's matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna

from flashgen.runtime.config import Config
from flashgen.tuning.proposals import Proposals
from flashgen.tuning.searching import UNLIMITED, Budget, Measure, Searching
from flashgen.tuning.storage import Place, opened_study
from flashgen.tuning.trial import Trial

optuna.logging.set_verbosity(optuna.logging.WARNING)


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
    budget: Budget = UNLIMITED,
    seed: int = 0,
    watch: Callable[[Trial], None] = lambda trial: None,
) -> Searched:
    """Measure configs of `space` until the budget is spent or none is left. Studies of parts of one `whole` are one.

    Each of `measures`, one for each GPU, works in a thread of its own on the same study. The configs `first` are
    tried before all others. With a `place` (a journal's path or a database's URL) the trials of earlier runs, and of
    other hosts on the studies of this `name`, count, whatever else was in their space: they are not measured again,
    and the budget's number of trials includes them; without one the study stays in memory. `watch` sees each new
    trial. A GPU on which nothing runs any more leaves what failed there to the others. An exception other than
    RequestFailed ends the search; the study keeps what was learned.
    """
    choices = choices_of([*space, *whole])
    text = " ".join(f"{field}={','.join(map(str, values))}" for field, values in choices.items())
    with opened_study(place, name, text) as (study, others):
        proposals = Proposals(study, space, choices, seed)
        for other in others:
            proposals.remember(other)
        is_all = budget.trials is None or budget.trials >= len(space)
        proposals.enqueue([*first, *(space if is_all else ())])
        Searching(proposals, budget, watch).run(measures)
    return Searched(tuple(proposals.known.values()))


def choices_of(space: Sequence[Config]) -> dict[str, list[Any]]:
    """What a space has of each field, in order; None, last, stands for configs without it."""
    flat = [config.as_dict() for config in space]
    names = dict.fromkeys(name for config in flat for name in config)
    found = {name: {config.get(name) for config in flat} for name in names}
    return {name: sorted(values, key=lambda value: (value is None, value)) for name, values in found.items()}
