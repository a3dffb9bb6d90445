"""What a limited search passed by: configs that won for another shape or dtype of a kernel and were not tried for this
one. The first searches of a run know least, and time for a few configs may be all that they get."""

from __future__ import annotations

from collections.abc import Iterable

from flashgen.runtime.config import Config
from flashgen.tuning.study import Searched

# Another's winner is worth a launch where it was faster there than one's own winner by more than this share.
WORTH = 0.02


def passed_by(own: Searched, winner: Config, others: Iterable[tuple[Searched, Config]]) -> list[Config]:
    """Winners of other searches that `own`, which `winner` won, did not try, each once.

    Left out are those that were hardly faster than `winner` where both were timed.
    """
    tried = {trial.config for trial in own.trials}
    found = [theirs for other, theirs in others if theirs not in tried and _is_worth_it(other, theirs, winner)]
    return list(dict.fromkeys(found))


def _is_worth_it(searched: Searched, theirs: Config, winner: Config) -> bool:
    times = {trial.config: trial.timing.median_us for trial in searched.ranking if trial.timing is not None}
    return winner not in times or times[winner] > (1 + WORTH) * times[theirs]
