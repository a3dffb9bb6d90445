"""How much effort a tuning run makes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from flashgen.choices import check_choice
from flashgen.errors import UsageError
from flashgen.runtime.registry import MODES, TUNED

# A search compiles and measures so many configs whatever the time: fewer would say nothing about the rest.
LEAST_TRIALS = 6


@dataclass(frozen=True)
class Preset:
    """`seconds` is for all workloads of one variant together, `build` the kernels that `flashgen build` spends them on;
    the other fields are for each workload of the forward. Any other kernel takes the share `backward` of
    `candidates` and `trials`.

    `candidates` configs, the nearest to the known ones, are compiled offline; `trials` of those that stay are timed
    for about `milliseconds` each; the best `finalists` are timed again in at most `rounds` interleaved rounds. None: no
    limit. Another dtype of the same size tries the best `passed_on` of each search beside its own defaults. With
    `hopeless` also what compilation judges not worth a launch is timed, where it can run at all: a table of the whole
    space, against which the judgement and the search can be checked.
    """

    seconds: float | None
    candidates: int | None
    trials: int | None
    milliseconds: float
    finalists: int
    rounds: int
    passed_on: int = 0
    hopeless: bool = False
    backward: float = 1.0
    build: tuple[str, ...] = TUNED

    def of(self, kernel: str) -> Preset:
        """The effort for one kernel."""
        if kernel == "forward" or self.backward == 1.0:
            return self
        candidates, trials = (
            None if count is None else max(LEAST_TRIALS, round(self.backward * count))
            for count in (self.candidates, self.trials)
        )
        return replace(self, candidates=candidates, trials=trials)


PRESETS = {
    "quick": Preset(
        seconds=15,
        candidates=12,
        trials=8,
        milliseconds=10,
        finalists=2,
        rounds=4,
        passed_on=1,
        backward=0.75,
        build=("forward", *MODES["decode"], *MODES["paged"]),
    ),
    "default": Preset(
        seconds=42, candidates=30, trials=16, milliseconds=20, finalists=4, rounds=6, passed_on=4, backward=0.5
    ),
    "full": Preset(seconds=None, candidates=None, trials=None, milliseconds=50, finalists=6, rounds=9),
}

EXHAUSTIVE = Preset(seconds=None, candidates=None, trials=None, milliseconds=30, finalists=12, rounds=6, hopeless=True)


def chosen(name: str, trials: int | None = None, seconds: float | None = None, exhaustive: bool = False) -> Preset:
    """A preset by its name, with another number of trials or seconds where they are given.

    `exhaustive` takes the place of all three.
    """
    if exhaustive:
        if trials is not None or seconds is not None:
            raise UsageError("an exhaustive search has no limit of trials or seconds; expected one or the other")
        return EXHAUSTIVE
    check_choice("preset", name, PRESETS)
    for what, value in (("trials", trials), ("budget_seconds", seconds)):
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{what} is {value}; expected a positive number")
    preset = PRESETS[name]
    if trials is not None:
        room = None if preset.candidates is None else max(preset.candidates, trials)
        preset = replace(preset, trials=trials, candidates=room, backward=1.0)
    return replace(preset, seconds=seconds) if seconds is not None else preset
