"""Requests at random, as they arrive."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from engine.scheduler import Request

# How many texts there are that requests begin with.
TEXTS = 4


@dataclass(frozen=True)
class Traffic:
    """On average `rate` requests a step, of lengths drawn log-uniformly from `prompt` and `new`.

    Every other one begins with one of a few texts of `common` tokens.
    """

    rate: float
    prompt: tuple[int, int]
    new: tuple[int, int]
    common: int

    def arrivals(self, vocabulary: int, seed: int = 0) -> Iterator[list[Request]]:
        """The requests of each step, without end."""
        draw = random.Random(seed)
        texts = [draw.choices(range(vocabulary), k=self.common) for _ in range(TEXTS)]
        due = 1.0
        while True:
            yield [self._request(draw, texts, vocabulary) for _ in range(int(due))]
            due = due % 1 + draw.uniform(0, 2 * self.rate)

    def _request(self, draw: random.Random, texts: list[list[int]], vocabulary: int) -> Request:
        begin = draw.choice(texts) if draw.random() < 0.5 else []
        own = draw.choices(range(vocabulary), k=log_uniform(draw, *self.prompt))
        return Request((*begin, *own), log_uniform(draw, *self.new))


def log_uniform(draw: random.Random, least: int, most: int) -> int:
    return round(math.exp(draw.uniform(math.log(least), math.log(most))))
