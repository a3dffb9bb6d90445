"""A memory of answers that does not grow without end."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

Answer = TypeVar("Answer")
MOST = 4096


def remember(memory: dict[Hashable, Answer], question: Hashable, answer: Answer) -> None:
    """Keep an answer; a memory that is full starts again."""
    if len(memory) >= MOST:
        memory.clear()
    memory[question] = answer
