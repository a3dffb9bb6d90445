"""A workload between its measurement and its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flashgen.runtime.config import Config
from flashgen.tuning.outcome import Entry
from flashgen.tuning.study import Searched
from flashgen.tuning.timing import Timing
from flashgen.tuning.workloads import Workload


@dataclass(frozen=True)
class Measured:
    """What `seconds` of search came to: the finalists that compute what the others do, the first of them to be
    recorded if it is proven, and what the outcome will say. No finalists where nothing could be timed.

    `replaces`: its record takes the place of the one that is there.
    """

    workload: Workload
    finalists: Sequence[tuple[Config, Timing]] = ()
    searched: Searched = field(default_factory=lambda: Searched(()))
    ranking: tuple[Entry, ...] = ()
    entries: tuple[Entry, ...] = ()
    lost: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    clocks: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    seconds: float = 0.0
    replaces: bool = False

    @property
    def configs(self) -> list[Config]:
        return [config for config, _ in self.finalists]
