"""What a measurement is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

# In microseconds: no launch is done within the first, none is waited for until the last.
LEAST_US, MOST_US = 1e-3, 1e12


@dataclass(frozen=True)
class Timing:
    """The median time of one launch, its interquartile range as a share of it, and how often it was timed.

    `hopeless` says that the measurement was stopped early, because the first repetitions were far from the best.
    """

    median_us: float
    spread: float
    repetitions: int
    hopeless: bool = False

    @property
    def is_possible(self) -> bool:
        """Whether clocks that work may have told it; what is read may have anything in its fields."""
        numbers = (self.median_us, self.spread, self.repetitions)
        if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in numbers):
            return False
        return LEAST_US <= self.median_us <= MOST_US and 0 <= self.spread < math.inf and isinstance(self.hopeless, bool)

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
