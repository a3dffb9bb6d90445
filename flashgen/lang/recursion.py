"""Recursion over graphs that share nodes and may be deep: each node is asked once, and Python's stack is left alone."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


class Recursion(Generic[Key, Answer]):
    """A recursive function of one argument, from a rule that is a generator.

    The rule `yield`s an argument to get the function's answer for it, and returns its own. Answers are kept as long as
    the object is, so that a graph costs what its nodes do, and not what it would written out as a tree.
    """

    def __init__(self, rule: Callable[[Key], Generator[Key, Answer, Answer]]) -> None:
        self._rule = rule
        self._known: dict[Key, Answer] = {}

    def __call__(self, key: Key) -> Answer:
        if key not in self._known:
            self._answer(key)
        return self._known[key]

    def _answer(self, key: Key) -> None:
        asked = [(key, self._rule(key))]
        # What the rule on top is to be told: None starts it.
        told: Any = None
        while asked:
            current, running = asked[-1]
            try:
                wanted = running.send(told)
            except StopIteration as done:
                self._known[current] = told = done.value
                asked.pop()
                continue
            if wanted in self._known:
                told = self._known[wanted]
            else:
                asked.append((wanted, self._rule(wanted)))
                told = None
