"""How much effort a tuning run makes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flashgen.errors import UsageError


@dataclass(frozen=True)
class Preset:
    """`seconds` is for all workloads of one variant together; the other fields are for each workload.

    `candidates` configs, the nearest to the known ones, are compiled offline; `trials` of those that stay are timed
    for about `milliseconds` each; the best `finalists` are timed again in `rounds` interleaved rounds. None: no limit.
    """

    seconds: float | None
    candidates: int | None
    trials: int | None
    milliseconds: float
    finalists: int
    rounds: int


PRESETS = {
    "quick": Preset(seconds=15, candidates=12, trials=8, milliseconds=10, finalists=2, rounds=3),
    "default": Preset(seconds=85, candidates=40, trials=20, milliseconds=20, finalists=4, rounds=5),
    "full": Preset(seconds=None, candidates=None, trials=None, milliseconds=50, finalists=6, rounds=9),
}


def chosen(name: str, trials: int | None = None, seconds: float | None = None) -> Preset:
    """A preset by its name, with another number of trials or seconds where they are given."""
    if name not in PRESETS:
        raise UsageError(f"preset {name!r}; expected one of {', '.join(PRESETS)}")
    for what, value in (("trials", trials), ("budget_seconds", seconds)):
        if value is not None and value <= 0:
            raise UsageError(f"{what} is {value}; expected a positive number")
    preset = PRESETS[name]
    if trials is not None:
        room = None if preset.candidates is None else max(preset.candidates, trials)
        preset = replace(preset, trials=trials, candidates=room)
    return replace(preset, seconds=seconds) if seconds is not None else preset
