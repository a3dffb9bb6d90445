"""An interval of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Interval:
    """low <= value <= high; either end may be infinite."""

    low: float
    high: float

    @property
    def has_ends(self) -> bool:
        """Whether neither end is infinite."""
        return -math.inf < self.low and self.high < math.inf

    def within(self, low: float, high: float) -> bool:
        return low <= self.low and self.high <= high


ANYTHING = Interval(-math.inf, math.inf)
BOOLEAN = Interval(0, 1)
INT32 = Interval(-(2**31), 2**31 - 1)
INT64 = Interval(-(2**63), 2**63 - 1)
# The normal numbers of float32.
LEAST_FLOAT32, LARGEST_FLOAT32 = 2.0**-126, (2 - 2.0**-23) * 2.0**127
FLOAT32 = Interval(-LARGEST_FLOAT32, LARGEST_FLOAT32)


def corners(function: Callable[[Any, Any], float]) -> Callable[[Interval, Interval], Interval]:
    """The rule of a function that has its least and greatest values where both operands have theirs."""

    def rule(a: Interval, b: Interval) -> Interval:
        values = [function(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
        return Interval(min(values), max(values))

    return rule
