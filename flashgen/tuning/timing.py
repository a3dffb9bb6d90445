"""What a measurement is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Timing:
    """The median time of one launch, its interquartile range as a share of it, and how often it was timed.

    `hopeless` says that the measurement was stopped early, because the first repetitions were far from the best.
    """

    median_us: float
    spread: float
    repetitions: int
    hopeless: bool = False

    def plus(self, other_us: float) -> Timing:
        """With the time of something else that is not timed with it."""
        total = self.median_us + other_us
        return replace(self, median_us=total, spread=self.spread * self.median_us / total)

    @classmethod
    def of(cls, samples_us: Sequence[float], hopeless: bool = False) -> Timing:
        median = statistics.median(samples_us)
        if len(samples_us) < 2:
            return cls(median, 0.0, len(samples_us), hopeless)
        low, _, high = statistics.quantiles(samples_us, n=4, method="inclusive")
        return cls(median, (high - low) / median, len(samples_us), hopeless)
