"""Tuning one workload: prune, search, time the best again, prove the winner, record it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from flashgen.problems import Problem
from flashgen.runtime.config import Config
from flashgen.runtime.lookup import cache_folder, neighbours, read_record
from flashgen.runtime.records import Record
from flashgen.tuning.cache import write_record
from flashgen.tuning.finals import finals, tied
from flashgen.tuning.outcome import Entry, Outcome, Work
from flashgen.tuning.presets import Preset
from flashgen.tuning.prune import Compiled, CompileRequest, Pruned, prune
from flashgen.tuning.space import STARTS, distance, search_space
from flashgen.tuning.storage import Place, storage_errors
from flashgen.tuning.study import Budget, Searched, search
from flashgen.tuning.timing import Timing
from flashgen.tuning.tools import Gpu, Tools
from flashgen.tuning.trial import Trial
from flashgen.tuning.worker import RequestFailed
from flashgen.tuning.workloads import Workload

# The share of a workload's time after which no further config is compiled, and none searched.
COMPILE_SHARE, SEARCH_SHARE = 0.4, 0.85

# Sees each new trial, and how many configs were dropped before.
Watch = Callable[[Workload, Trial, int], None]


@dataclass(frozen=True)
class Options:
    """What a session does beside its preset. `storage` is the URL of a database that several hosts share."""

    scheduled: bool = False
    seed: int = 0
    storage: str | None = None
    force: bool = False


class Session:
    """Tunes workloads of one variant one after another; what it learns of one helps the next.

    `default` gives the built-in config from (capability, dtype, head_dim, v_head_dim). `roots` are the folders of
    records, the one to write to first.
    """

    def __init__(
        self, tools: Tools, preset: Preset, default: Callable[[str, str, int, int], Config], roots: Sequence[Path],
        options: Options = Options(), watch: Watch = lambda workload, trial, dropped: None,
    ) -> None:  # fmt: skip
        self._tools, self._preset, self._default, self._roots = tools, preset, default, roots
        self._options, self._watch = options, watch
        self._compiled: dict[tuple[str, int, int], dict[Config, Compiled | RequestFailed]] = {}
        self._winners: dict[tuple[int, int], list[Config]] = {}

    def existing(self, workload: Workload) -> Outcome | None:
        """What the caches have for this very key; None with `force`."""
        start = time.monotonic()
        for root in self._roots if not self._options.force else ():
            record = read_record(root / workload.key.path)
            if record is not None and record.key == workload.key:
                return Outcome(workload, "found", record, time.monotonic() - start)
        return None

    def tune(self, workload: Workload, seconds: float | None) -> Outcome:
        """Find the best config within about `seconds` and record it. With `force` an old journal is begun anew."""
        start = time.monotonic()
        key = workload.key
        space = search_space(
            self._tools.device.capability, key.dtype, key.head_dim, key.v_head_dim,
            workload.problem.q_len, workload.problem.kv_len, scheduled=self._options.scheduled,
        )  # fmt: skip
        first = self._first(workload)
        # The default is always tried, also where the space leaves configs like it out: a record must not be worse.
        candidates = _nearest(list(dict.fromkeys([first[0], *space.configs])), first, self._preset.candidates)
        pruned = self._prune(workload, candidates, None if seconds is None else COMPILE_SHARE * seconds)
        if not pruned.kept:
            entries = _entries((), pruned)
            return Outcome(workload, "failed", None, time.monotonic() - start, (), entries, {}, space.dropped)
        left = None if seconds is None else max(0.0, SEARCH_SHARE * seconds - (time.monotonic() - start))
        searched = self._search(workload, pruned, first, left)
        finalists = self._finals(workload, searched)
        lost: dict[str, int] = {}
        winner = self._proven(workload, [config for config, _ in finalists], lost)
        ranking = tuple(Entry.of(config, pruned.compiled.get(config), timing) for config, timing in finalists)
        entries = _entries(searched.trials, pruned)
        found = (ranking, entries, lost, space.dropped, self._work(workload.problem))
        if winner is None:
            self._forget(workload)  # What spoiled every config may be gone at the next run.
            return Outcome(workload, "failed", None, time.monotonic() - start, *found)
        outcome = Outcome(workload, "tuned", None, time.monotonic() - start, *found)
        record = self._record(outcome, winner, dict(finalists)[winner], tied(finalists, winner))
        self._winners.setdefault((key.head_dim, key.v_head_dim), []).append(record.config)
        return Outcome(workload, "tuned", record, time.monotonic() - start, *found)

    def _first(self, workload: Workload) -> list[Config]:
        """Where to begin: the built-in default, this run's winners for other dtypes and shapes, neighbours' records,
        and the usual shapes."""
        key = workload.key
        own = [record for root in self._roots if (record := read_record(root / key.path)) is not None]
        near = [record.config for record in own + neighbours(key, self._roots)[:4]]
        winners = self._winners.get((key.head_dim, key.v_head_dim), [])[-2:]
        return list(
            dict.fromkeys(
                [self._default(key.capability, key.dtype, key.head_dim, key.v_head_dim), *winners, *near, *STARTS]
            )
        )

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
        return prune(candidates, known, self._tools.device.capability, forgiving=self._preset.hopeless)

    def _search(self, workload: Workload, pruned: Pruned, first: Sequence[Config], seconds: float | None) -> Searched:
        if self._options.force:
            self._forget(workload)
        dropped = sum(1 for config in pruned.verdicts if config not in pruned.kept)
        key = workload.key
        return search(
            pruned.kept,
            [partial(self._time, gpu, workload.problem) for gpu in self._tools.gpus],
            place=self._place(workload),
            name=f"{key} spec {key.spec} templates {key.templates}",
            first=first,
            budget=Budget(self._preset.trials, seconds),
            seed=self._options.seed,
            watch=lambda trial: self._watch(workload, trial, dropped),
        )

    def _time(self, gpu: Gpu, problem: Problem, config: Config, best_us: float | None = None) -> Timing:
        return gpu.time(problem, config, self._preset.milliseconds, best_us)

    def _finals(self, workload: Workload, searched: Searched) -> list[tuple[Config, Timing]]:
        return finals(
            [trial.config for trial in searched.ranking[: self._preset.finalists]],
            [partial(self._time, gpu, workload.problem) for gpu in self._tools.gpus],
            self._preset.rounds,
            self._options.seed,
        )

    def _proven(self, workload: Workload, finalists: Sequence[Config], lost: dict[str, int]) -> Config | None:
        """The fastest finalist that computes the variant's formula; the others are counted by reason in `lost`."""
        for config in finalists:
            try:
                reason = "verification" if self._tools.gpus[0].prove(workload.problem, config) else ""
            except RequestFailed as failure:
                reason = failure.reason
            if not reason:
                return config
            lost[reason] = lost.get(reason, 0) + 1
        return None

    def _work(self, problem: Problem) -> Work | None:
        try:
            return self._tools.gpus[0].work(problem)
        except RequestFailed:
            return None

    def _record(self, outcome: Outcome, config: Config, timing: Timing, ties: Sequence[Config]) -> Record:
        note = [f"measured on {outcome.workload.problem}"]
        if self._options.scheduled:
            note.append("with a schedule prepared by plan()")
        if ties:
            note.append(f"a tie with {', '.join(map(str, ties))}")
        record = Record(
            outcome.workload.key, config, round(timing.median_us, 3), round(timing.spread, 5), outcome.tried,
            outcome.failed, outcome.dropped, dict(self._tools.versions()), dict(self._tools.state()),
            datetime.now(timezone.utc).isoformat(timespec="seconds"), "; ".join(note),
        )  # fmt: skip
        return write_record(record, self._roots[0], replace=self._options.force)

    def _place(self, workload: Workload) -> Place:
        return self._options.storage or journal_path(workload)

    def _forget(self, workload: Workload) -> None:
        """Delete this host's journal; a study that hosts share stays."""
        if self._options.storage is None:
            path = journal_path(workload)
            with storage_errors(path):
                path.unlink(missing_ok=True)


def journal_path(workload: Workload) -> Path:
    """Where this host keeps the study of a workload."""
    return cache_folder() / "studies" / workload.key.path.with_suffix(".log")


def _entries(trials: Sequence[Trial], pruned: Pruned) -> tuple[Entry, ...]:
    """Every config that was tried, in that order, then those that were dropped."""
    tried = [
        Entry.of(t.config, pruned.compiled.get(t.config), t.timing, t.failure, pruned.verdicts.get(t.config, ""))
        for t in trials
    ]
    known = {entry.config for entry in tried}
    dropped = [config for config, why in pruned.verdicts.items() if why and config not in known]
    return (*tried, *(Entry.of(c, pruned.compiled.get(c), dropped=pruned.verdicts[c]) for c in dropped))


def _nearest(space: Sequence[Config], first: Sequence[Config], count: int | None) -> list[Config]:
    """The configs nearest to any of `first`, in an order that does not depend on chance."""
    anchors = [config for config in first if config in set(space)] or [space[len(space) // 2]] if space else []
    ordered = sorted(space, key=lambda config: (min(distance(config, anchor) for anchor in anchors), str(config)))
    return ordered[:count]
