"""What tuning one workload came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flashgen.runtime.config import Config
from flashgen.runtime.records import Record
from flashgen.tuning.prune import Compiled, Pruned
from flashgen.tuning.timing import Timing
from flashgen.tuning.trial import Trial
from flashgen.tuning.workloads import Workload


@dataclass(frozen=True)
class Entry:
    """A config and what became of it.

    `timing` is None where there is none, because it failed when it was launched (`failure` says how) or was not
    launched. `dropped` is the verdict of its compilation, empty for a config that is worth a launch. Registers a
    thread, bytes of spills a thread and of shared memory a program are None where the compiler did not tell.
    """

    config: Config
    timing: Timing | None = None
    failure: str = ""
    dropped: str = ""
    registers: int | None = None
    spills: int | None = None
    shared: int | None = None
    serialized_wgmma: bool | None = None

    @classmethod
    def of(
        cls, config: Config, compiled: Compiled | None, timing: Timing | None = None, failure: str = "",
        dropped: str = "",
    ) -> Entry:  # fmt: skip
        if compiled is None or compiled.error is not None:
            return cls(config, timing, failure, dropped)
        resources = (compiled.registers, compiled.spills, compiled.shared, compiled.serialized_wgmma)
        return cls(config, timing, failure, dropped, *resources)


@dataclass(frozen=True)
class Work:
    """What a problem takes at least and what the GPU can do: useful floating-point operations and bytes of one call,
    the TFLOP/s of a large matrix product in its dtype, and the GB/s of a large copy, both measured."""

    flops: float
    bytes: float
    ceiling_tflops: float
    bandwidth_gbs: float

    def tflops(self, median_us: float) -> float:
        return self.flops / median_us / 1e6

    def share(self, median_us: float) -> float:
        """The part of the matrix product's speed that is reached."""
        return self.tflops(median_us) / self.ceiling_tflops


@dataclass(frozen=True)
class Outcome:
    """What became of a workload. `status` is "found" (a record was there), "tuned", or "failed".

    `ranking` has the finalists with their last, interleaved timings, the fastest first; `entries` every config that
    was tried, in that order, and then those that were dropped. `lost` counts configs that ran and then failed, by
    reason, `left_out` those that never were compiled. `work` is None where it could not be measured.
    """

    workload: Workload
    status: str
    record: Record | None
    seconds: float
    ranking: tuple[Entry, ...] = ()
    entries: tuple[Entry, ...] = ()
    lost: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    work: Work | None = None

    @property
    def tried(self) -> int:
        """How many configs were launched."""
        return sum(1 for entry in self.entries if launched(entry))

    @property
    def failed(self) -> Mapping[str, int]:
        """How many of them gave no valid time, by reason."""
        return tally([entry.failure for entry in self.entries], self.lost)

    @property
    def dropped(self) -> Mapping[str, int]:
        """How many were judged hopeless before any launch, by reason."""
        return tally([entry.dropped for entry in self.entries if not launched(entry)], self.left_out)

    def __str__(self) -> str:
        if self.record is None:
            return f"{self.workload}: no config worked; {self._counts()}"
        record = self.record
        text = f"{self.workload}: {record.config.label}, {record.median_us:.1f} us"
        return f"{text} (recorded)" if self.status == "found" else f"{text} ±{record.spread:.1%}; {self._counts()}"

    def _counts(self) -> str:
        parts = [f"{self.tried} tried"]
        for what, counts in (("failed", self.failed), ("dropped before a launch", self.dropped)):
            if counts:
                reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
                parts.append(f"{sum(counts.values())} {what} ({reasons})")
        return f"{', '.join(parts)}, {self.seconds:.1f} s"


def timed(entries: Iterable[Entry]) -> list[tuple[Entry, Timing]]:
    """The entries that have a timing, each with it, in their order."""
    return [(entry, entry.timing) for entry in entries if entry.timing is not None]


def launched(entry: Entry) -> bool:
    return entry.timing is not None or bool(entry.failure)


def tally(reasons: Iterable[str], more: Mapping[str, int]) -> dict[str, int]:
    return dict(Counter(filter(None, reasons)) + Counter(more))


def entries_of(trials: Sequence[Trial], pruned: Pruned) -> tuple[Entry, ...]:
    """Every config that was tried, in that order, then those that were dropped."""
    tried = [
        Entry.of(t.config, pruned.compiled.get(t.config), t.timing, t.failure, pruned.verdicts.get(t.config, ""))
        for t in trials
    ]
    known = {entry.config for entry in tried}
    dropped = [config for config, why in pruned.verdicts.items() if why and config not in known]
    return (*tried, *(Entry.of(c, pruned.compiled.get(c), dropped=pruned.verdicts[c]) for c in dropped))
