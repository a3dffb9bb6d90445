"""Tuning one workload: prune, search, time the best again, prove the winner, record it."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from flashgen.problems import Problem
from flashgen.runtime.config import Config
from flashgen.runtime.lookup import cache_folder, neighbours, read_record
from flashgen.runtime.records import Device, Record
from flashgen.tuning.cache import write_record
from flashgen.tuning.presets import Preset
from flashgen.tuning.prune import Compiled, CompileRequest, Pruned, prune
from flashgen.tuning.space import search_space
from flashgen.tuning.study import Budget, Searched, Trial, search
from flashgen.tuning.timing import Timing
from flashgen.tuning.worker import RequestFailed
from flashgen.tuning.workloads import Workload

# The share of a workload's time after which no further config is compiled, and none searched.
COMPILE_SHARE, SEARCH_SHARE = 0.4, 0.85
# Finalists whose medians are this close, as a share, are a tie.
TIE = 0.005


class Tools(Protocol):
    """What a session needs from the machine; tests give it a fake one."""

    @property
    def device(self) -> Device: ...

    def time(self, problem: Problem, config: Config, milliseconds: float, best_us: float | None) -> Timing:
        """Raises RequestFailed."""

    def prove(self, problem: Problem, config: Config) -> str:
        """What is wrong with a config, empty if nothing is. Raises RequestFailed."""

    def compile(
        self, requests: Sequence[CompileRequest], seconds: float
    ) -> Mapping[Config, Compiled | RequestFailed]: ...

    def versions(self) -> Mapping[str, str]: ...

    def state(self) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class Finalist:
    """A config that was timed again; `compiled` is what the compiler said of it, where it was asked."""

    config: Config
    timing: Timing
    compiled: Compiled | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a workload. `status` is "found" (a record was there), "tuned", or "failed".

    `ranking` has the finalists, the fastest first. `tried`, `failed` and `dropped` are as in a Record.
    """

    workload: Workload
    status: str
    record: Record | None
    seconds: float
    ranking: tuple[Finalist, ...] = ()
    tried: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.record is None:
            return f"{self.workload.problem}: no config worked; {self._counts()}"
        config, record = self.record.config, self.record
        text = (
            f"{self.workload.problem}: BM {config.BM} BN {config.BN}, {config.num_warps} warps, "
            f"{config.num_stages} stages, {record.median_us:.1f} us"
        )
        return f"{text} (recorded)" if self.status == "found" else f"{text} ±{record.spread:.1%}; {self._counts()}"

    def _counts(self) -> str:
        parts = [f"{self.tried} tried"]
        for what, counts in (("failed", self.failed), ("dropped before a launch", self.dropped)):
            if counts:
                reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
                parts.append(f"{sum(counts.values())} {what} ({reasons})")
        return f"{', '.join(parts)}, {self.seconds:.1f} s"


class Session:
    """Tunes workloads of one variant one after another; what it learns of one helps the next.

    `roots` are the folders of records, the one to write to first. `watch` sees each new trial.
    """

    def __init__(
        self, tools: Tools, preset: Preset, default: Callable[[str, int, int], Config], roots: Sequence[Path], *,
        scheduled: bool = False, seed: int = 0, watch: Callable[[Workload, Trial], None] = lambda workload, trial: None,
    ) -> None:  # fmt: skip
        self._tools, self._preset, self._default, self._roots = tools, preset, default, roots
        self._scheduled, self._seed, self._watch = scheduled, seed, watch
        self._compiled: dict[tuple[str, int, int], dict[Config, Compiled | RequestFailed]] = {}
        self._winners: dict[tuple[int, int], list[Config]] = {}

    def existing(self, workload: Workload) -> Outcome | None:
        """What the caches have for this very key."""
        start = time.monotonic()
        for root in self._roots:
            record = read_record(root / workload.key.path)
            if record is not None and record.key == workload.key:
                return Outcome(workload, "found", record, time.monotonic() - start)
        return None

    def tune(self, workload: Workload, seconds: float | None, force: bool = False) -> Outcome:
        """Find the best config within about `seconds` and record it. With `force` an old study is begun anew."""
        start = time.monotonic()
        space = search_space(
            self._tools.device.capability, workload.key.dtype, workload.key.head_dim, workload.key.v_head_dim,
            workload.problem.q_len, workload.problem.kv_len, scheduled=self._scheduled,
        )  # fmt: skip
        first = self._first(workload)
        # The default is always tried, also where the space leaves configs like it out: a record must not be worse.
        candidates = _nearest(list(dict.fromkeys([first[0], *space.configs])), first, self._preset.candidates)
        pruned = self._prune(workload, candidates, None if seconds is None else COMPILE_SHARE * seconds)
        dropped = dict(Counter(space.dropped) + Counter(pruned.dropped))
        if not pruned.kept:
            return Outcome(workload, "failed", None, time.monotonic() - start, dropped=dropped)
        left = None if seconds is None else max(0.0, SEARCH_SHARE * seconds - (time.monotonic() - start))
        searched = self._search(workload, pruned.kept, first, left, force)
        finalists = self._finals(workload, searched)
        failed = Counter(searched.failed)
        winner = self._proven(workload, finalists, failed)
        ranking = tuple(Finalist(config, timing, pruned.compiled.get(config)) for config, timing in finalists)
        record = None
        if winner is not None:
            counts = (len(searched.trials), dict(failed), dropped)
            record = self._record(workload, winner, ranking, counts, force)
            self._winners.setdefault((workload.key.head_dim, workload.key.v_head_dim), []).append(record.config)
        else:
            _journal(workload).unlink(missing_ok=True)  # What spoiled every config may be gone at the next run.
        status = "failed" if record is None else "tuned"
        elapsed = time.monotonic() - start
        return Outcome(workload, status, record, elapsed, ranking, len(searched.trials), dict(failed), dropped)

    def _first(self, workload: Workload) -> list[Config]:
        """Where to begin: the built-in default, this run's winners for other dtypes and shapes, neighbours' records."""
        key = workload.key
        own = [record for root in self._roots if (record := read_record(root / key.path)) is not None]
        near = [record.config for record in own + neighbours(key, self._roots)[:4]]
        winners = self._winners.get((key.head_dim, key.v_head_dim), [])[-2:]
        return list(dict.fromkeys([self._default(key.dtype, key.head_dim, key.v_head_dim), *winners, *near]))

    def _prune(self, workload: Workload, candidates: Sequence[Config], seconds: float | None) -> Pruned:
        """Compile what no earlier workload has compiled; shapes do not matter to the compiler, so most is known."""
        key = workload.key
        known = self._compiled.setdefault((key.dtype, key.head_dim, key.v_head_dim), {})
        requests = [
            CompileRequest(key.dtype, key.head_dim, key.v_head_dim, config)
            for config in candidates
            if config not in known
        ]
        known.update(self._tools.compile(requests, float("inf") if seconds is None else seconds))
        return prune(candidates, known, self._tools.device.capability)

    def _search(
        self, workload: Workload, configs: Sequence[Config], first: Sequence[Config], seconds: float | None, force: bool
    ) -> Searched:
        journal = _journal(workload)
        if force:
            journal.unlink(missing_ok=True)
        return search(
            configs,
            lambda config, best: self._tools.time(workload.problem, config, self._preset.milliseconds, best),
            journal=journal,
            first=first,
            budget=Budget(self._preset.trials, seconds),
            seed=self._seed,
            watch=lambda trial: self._watch(workload, trial),
        )

    def _finals(self, workload: Workload, searched: Searched) -> list[tuple[Config, Timing]]:
        """Time the best few again, interleaved and shuffled, so that a drift of the clocks meets all alike."""
        samples: dict[Config, list[float]] = {t.config: [] for t in searched.ranking[: self._preset.finalists]}
        order = random.Random(self._seed)
        for _ in range(self._preset.rounds):
            for config in order.sample(list(samples), len(samples)):
                try:
                    timing = self._tools.time(workload.problem, config, self._preset.milliseconds, None)
                    samples[config].append(timing.median_us)
                except RequestFailed:
                    del samples[config]  # What fails now and then is no winner.
        timed = [(config, Timing.of(medians)) for config, medians in samples.items()]
        return sorted(timed, key=lambda entry: entry[1].median_us)

    def _proven(
        self, workload: Workload, finalists: Sequence[tuple[Config, Timing]], failed: Counter[str]
    ) -> tuple[Config, Timing] | None:
        """The fastest finalist that computes the variant's formula; the others are counted as failed."""
        for config, timing in finalists:
            try:
                wrong = self._tools.prove(workload.problem, config)
            except RequestFailed as failure:
                failed[failure.reason] += 1
                continue
            if not wrong:
                return config, timing
            failed["verification"] += 1
        return None

    def _record(
        self, workload: Workload, winner: tuple[Config, Timing], ranking: Sequence[Finalist],
        counts: tuple[int, dict[str, int], dict[str, int]], force: bool,
    ) -> Record:  # fmt: skip
        config, timing = winner
        record = Record(
            workload.key, config, round(timing.median_us, 3), round(timing.spread, 5), *counts,
            dict(self._tools.versions()), dict(self._tools.state()),
            datetime.now(timezone.utc).isoformat(timespec="seconds"), self._note(workload, winner, ranking),
        )  # fmt: skip
        return write_record(record, self._roots[0], replace=force)

    def _note(self, workload: Workload, winner: tuple[Config, Timing], ranking: Sequence[Finalist]) -> str:
        limit = winner[1].median_us * (1 + TIE)
        ties = [str(f.config) for f in ranking if f.config != winner[0] and f.timing.median_us <= limit]
        parts = [f"measured on {workload.problem}"]
        if self._scheduled:
            parts.append("with a schedule prepared by plan()")
        if ties:
            parts.append(f"a tie with {', '.join(ties)}")
        return "; ".join(parts)


def _journal(workload: Workload) -> Path:
    return cache_folder() / "studies" / workload.key.path.with_suffix(".log")


def _nearest(space: Sequence[Config], first: Sequence[Config], count: int | None) -> list[Config]:
    """The configs nearest to any of `first`, in steps of the space, in an order that does not depend on chance."""
    anchors = [config for config in first if config in set(space)] or [space[len(space) // 2]] if space else []
    ordered = sorted(space, key=lambda config: (min(_steps(config, anchor) for anchor in anchors), str(config)))
    return ordered[:count]


def _steps(one: Config, two: Config) -> int:
    """How many steps apart: doublings of tiles and warps, single stages."""
    pairs = [(getattr(one, name), getattr(two, name)) for name in asdict(one)]
    *sizes, stages = pairs
    return sum(abs(a.bit_length() - b.bit_length()) for a, b in sizes) + abs(stages[0] - stages[1])
