"""Lengths of sequences as batches of packed documents have them."""

from __future__ import annotations

import random


def spread(count: int, longest: int, shortest: int) -> tuple[int, ...]:
    """So many lengths from the longest to the shortest, log-uniform: their logarithms are evenly apart.

    The same for every batch of this size, in a random order that is always the same.
    """
    ratio, steps = shortest / longest, max(1, count - 1)
    found = [round(longest * ratio ** (step / steps)) for step in range(count)]
    random.Random(0).shuffle(found)
    return tuple(found)
