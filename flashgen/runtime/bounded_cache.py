"""A cache of answers that does not grow without end."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

Answer = TypeVar("Answer")
MOST = 4096


def remember(cache: dict[Hashable, Answer], question: Hashable, answer: Answer) -> None:
    """Keep an answer; a cache that is full starts again."""
    if len(cache) >= MOST:
        cache.clear()
    cache[question] = answer
