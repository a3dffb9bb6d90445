"""Tuning one workload: prune, search, time the best again, prove the winner, record it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from flashgen.printable import in_short
from flashgen.problems.problem import Problem
from flashgen.runtime.config import Config
from flashgen.runtime.defaults import Default, built_in
from flashgen.runtime.record_table import MOST_LETTERS
from flashgen.runtime.records import Record
from flashgen.runtime.usable_records import read_record
from flashgen.tuning.cache import write_record
from flashgen.tuning.candidates import Candidates, group
from flashgen.tuning.clocks import throttling
from flashgen.tuning.compilation import Compilation
from flashgen.tuning.finals import finals, settled, tied
from flashgen.tuning.measured import Measured
from flashgen.tuning.outcome import Entry, Outcome, Work, entries_of
from flashgen.tuning.passed_by import passed_by
from flashgen.tuning.presets import LEAST_TRIALS, Preset
from flashgen.tuning.proofs import Proofs
from flashgen.tuning.prune import Pruned
from flashgen.tuning.storage import Place, forget_studies, journal_path, study_name
from flashgen.tuning.study import Budget, Searched, search
from flashgen.tuning.timing import Timing
from flashgen.tuning.tools import Gpu, Tools
from flashgen.tuning.trial import Trial
from flashgen.tuning.worker import RequestFailed
from flashgen.tuning.workloads import Workload

# The share of a workload's time after which no further config is compiled, and none searched.
COMPILE_SHARE, SEARCH_SHARE = 0.7, 0.85

# Sees each new trial, and how many configs were dropped before.
Watch = Callable[[Workload, Trial, int], None]


@dataclass(frozen=True)
class Options:
    """What a session does beside its preset.

    `scheduled` are the kernels that walk a schedule of tiles, `defaults` the built-in defaults by kernel, as far as the
    variant has its own. `storage` is the URL of a database that hosts share. `exact`: float32 is multiplied as such,
    not as TF32.
    """

    scheduled: frozenset[str] = frozenset()
    defaults: Mapping[str, Default] = field(default_factory=dict)
    seed: int = 0
    storage: str | None = None
    force: bool = False
    exact: bool = True

    def default(self, kernel: str, packed: bool = False) -> Default:
        """The built-in default of a kernel, or that for packed sequences."""
        own = None if packed else self.defaults.get(kernel)
        return own or built_in(kernel, kernel in self.scheduled, packed)


class Session:
    """Tunes workloads of one variant one after another; what it learns of one helps the next.

    `folders` are those of the variant's records, the one to write to first.
    """

    def __init__(
        self, tools: Tools, preset: Preset, folders: Sequence[Path], options: Options = Options(),
        watch: Watch = lambda workload, trial, dropped: None,
    ) -> None:  # fmt: skip
        self._tools, self._preset, self._folders = tools, preset, folders
        self._options, self._watch = options, watch
        self._candidates = Candidates(preset, folders, options.scheduled, options.default, options.exact)
        self._dq_us: dict[Problem, float] = {}
        self._searched: dict[Workload, tuple[Searched, Config]] = {}
        self._anew = set[Workload]()
        self._proofs = Proofs(tools, options.default)
        self._compilation = Compilation(tools, self._candidates, self._proofs, preset.hopeless)

    def existing(self, workload: Workload) -> Outcome | None:
        """What the caches have for this very key; None with `force`."""
        start = time.monotonic()
        for folder in self._folders if not self._options.force else ():
            record = read_record(folder, workload.key)
            if record is not None:
                self._learn(workload, record)
                return Outcome(workload, "found", record, time.monotonic() - start)
        return None

    def tune(self, workload: Workload, seconds: float | None) -> Outcome:
        """Find the best config within about `seconds` and record it. With `force` an old journal is begun anew."""
        (outcome,) = self.tune_each([workload], lambda place: seconds)
        return outcome

    def tune_each(
        self, workloads: Sequence[Workload], seconds: Callable[[int], float | None] = lambda place: None
    ) -> Iterator[Outcome]:
        """Tune workloads in this order, each, by its place, within about so many seconds; None for no limit.

        While the compilers make what the proof of one needs, the next are measured.
        """
        waiting: list[Measured] = []
        for place, workload in enumerate(workloads):
            self.prepare(workloads[place:])
            for measured in [each for each in waiting if self._is_due(each, workload)]:
                waiting.remove(measured)
                yield self._conclude(measured)
            waiting.append(self._measure(workload, seconds(place)))
            self._proofs.begin(workload, waiting[-1].configs)
        yield from map(self._conclude, waiting)

    def _is_due(self, measured: Measured, following: Workload) -> bool:
        """Whether the compilers are done with its proof, or the workload that follows is charged with its time."""
        charged = following.key.kernel == "backward_kv" and measured.workload.key.kernel == "backward_q"
        return charged or self._proofs.are_ready(measured.workload, measured.configs)

    def look_again(self, outcome: Outcome) -> Outcome:
        """Where an outcome's search passed by what won for others of this run, time that too; the better outcome."""
        workload = outcome.workload
        if workload not in self._searched:
            return outcome
        searched, winner = self._searched[workload]
        alike = {group(workload), *self._candidates.siblings(workload)}
        others = [found for other, found in self._searched.items() if group(other) in alike]
        space = self._candidates.space(workload).configs
        more = [config for config in passed_by(searched, winner, others) if config in space]
        if not more:
            return outcome
        # The clock may have changed since: they are timed beside the winner.
        found = self._conclude(self._measure_again(outcome, [winner, *more]))
        return outcome if found.record is None else found

    def _measure(self, workload: Workload, seconds: float | None) -> Measured:
        """Search, and time the best again."""
        if workload.key.kernel == "backward_kv" and workload.problem not in self._dq_us:
            return Measured(workload, lost={"no config for backward_q": 1})
        start = time.monotonic()
        first = self._candidates.first(workload)
        self._begin(workload, first)

        def left(share: float) -> float | None:
            return None if seconds is None else max(0.0, share * seconds - (time.monotonic() - start))

        pruned = self._compilation.prune(workload, self._candidates.of(workload), left(COMPILE_SHARE))
        budget = Budget(self._preset.of(workload.key.kernel).trials, left(SEARCH_SHARE), LEAST_TRIALS)
        measured = self._timed(workload, pruned, pruned.kept, first, budget)
        return replace(measured, seconds=time.monotonic() - start)

    def _begin(self, workload: Workload, first: Sequence[Config]) -> None:
        """Time a few as soon as they are compiled, `first` or what is: they tell what else is worth compiling."""
        known = self._candidates.compiled(workload)
        candidates = sorted(self._candidates.of(workload), key=lambda each: each not in first and each not in known)
        pruned = self._compilation.prune(workload, candidates[:LEAST_TRIALS], None)
        if pruned.kept:
            begun = self._search(workload, pruned, pruned.kept, first, Budget(LEAST_TRIALS))
            self._candidates.timed(workload, begun.ranking)

    def _measure_again(self, outcome: Outcome, finalists: Sequence[Config]) -> Measured:
        """Time these beside one another. The study goes on, and what the outcome says of others stays said."""
        workload, start = outcome.workload, time.monotonic()
        searched, _ = self._searched[workload]
        pruned = self._compilation.prune(workload, [*(entry.config for entry in outcome.entries), *finalists], None)
        among = {*finalists, *(trial.config for trial in searched.trials)}
        space = [config for config in pruned.kept if config in among]
        measured = self._timed(workload, pruned, space, finalists, Budget(), alone=True)
        return replace(measured, seconds=time.monotonic() - start, replaces=True)

    def _timed(
        self, workload: Workload, pruned: Pruned, space: Sequence[Config], first: Sequence[Config], budget: Budget,
        alone: bool = False,
    ) -> Measured:  # fmt: skip
        """Search a space from `first` on, then time the best again and compare them; of `first` alone, if so said."""
        left_out = self._candidates.space(workload).dropped
        if not space:
            return Measured(workload, entries=entries_of((), pruned), left_out=left_out)
        with self._tools.observed() as observation:
            searched = self._search(workload, pruned, space, first, budget)
            timed = [trial.config for trial in searched.ranking]
            best = [config for config in timed if config in first] if alone else timed[: self._preset.finalists]
            finalists = self._finals(workload, best)
        lost: dict[str, int] = {}
        odd, note = self._proofs.odd(workload, searched, finalists, lost)
        finalists = settled([each for each in finalists if each[0] not in odd], first)
        self._candidates.ranked(workload, [config for config in timed if config not in odd])
        for config, _ in finalists[:1]:
            self._candidates.won(workload, config)
        ranking = tuple(Entry.of(config, pruned.compiled.get(config), timing) for config, timing in finalists)
        return Measured(
            workload, finalists, searched, ranking, entries_of(searched.trials, pruned), lost, left_out,
            observation.state, note,
        )  # fmt: skip

    def _conclude(self, measured: Measured) -> Outcome:
        """Prove the fastest and record it."""
        start, workload, lost = time.monotonic(), measured.workload, dict(measured.lost)
        with ThreadPoolExecutor(1) as aside:
            # On another GPU than the proof, where there is one.
            work = aside.submit(self._work, workload) if measured.finalists else None
            winner = self._proofs.proven(workload, measured.configs, lost)
        found = (measured.ranking, measured.entries, lost, measured.left_out, None if work is None else work.result())
        seconds = measured.seconds + time.monotonic() - start
        if winner is None:
            if measured.searched.trials and not measured.replaces:
                self._forget(workload)  # What spoiled every config may be gone at the next run.
            return Outcome(workload, "failed", None, seconds, *found)
        record = self._record(Outcome(workload, "tuned", None, seconds, *found), winner, measured)
        self._searched[workload] = measured.searched, record.config
        self._learn(workload, record)
        return Outcome(workload, "tuned", record, measured.seconds + time.monotonic() - start, *found)

    def _learn(self, workload: Workload, record: Record) -> None:
        """What a record says to the workloads that come after."""
        self._candidates.won(workload, record.config)
        if workload.key.kernel == "backward_q":
            self._dq_us[workload.problem] = record.median_us

    def prepare(self, workloads: Sequence[Workload]) -> None:
        """Have the compilers begin with what these workloads will ask for, a few configs of each before the rest."""
        self._compilation.prepare(workloads)

    def _search(
        self, workload: Workload, pruned: Pruned, space: Sequence[Config], first: Sequence[Config], budget: Budget
    ) -> Searched:  # fmt: skip
        if self._options.force and self._options.storage is None and workload not in self._anew:
            self._forget(workload)  # A study that hosts share stays.
        self._anew.add(workload)
        dropped = sum(1 for config in pruned.verdicts if config not in pruned.kept)
        return search(
            space,
            [partial(self._time, gpu, workload) for gpu in self._tools.gpus],
            place=self._place(workload),
            name=study_name(workload),
            whole=self._candidates.space(workload).configs,
            first=first,
            budget=budget,
            seed=self._options.seed,
            watch=lambda trial: self._watch(workload, trial, dropped),
        )

    def _time(self, gpu: Gpu, workload: Workload, config: Config, best_us: float | None = None) -> Timing:
        """The time of a launch. What leaves dQ to its own kernel is charged that kernel's time."""
        charge = self._dq_us[workload.problem] if config.fuse_dq == 0 else 0.0
        limit = None if best_us is None else max(best_us - charge, 1.0)
        timing = gpu.time(workload, config, self._preset.milliseconds, limit)
        if not timing.is_possible:
            raise RequestFailed("impossible time", f"{timing}")
        return timing.plus(charge)

    def _finals(self, workload: Workload, configs: Sequence[Config]) -> list[tuple[Config, Timing]]:
        return finals(
            configs,
            [partial(self._time, gpu, workload) for gpu in self._tools.gpus],
            self._preset.rounds,
            self._options.seed,
        )

    def _work(self, workload: Workload) -> Work | None:
        try:
            return self._tools.gpus[-1].work(workload)
        except RequestFailed:
            return None

    def _record(self, outcome: Outcome, config: Config, measured: Measured) -> Record:
        timing, ties = dict(measured.finalists)[config], tied(measured.finalists, config)
        note = [f"measured on {outcome.workload.problem}"]
        kernel = outcome.workload.key.kernel
        if kernel in self._options.scheduled:
            note.append("with a schedule prepared by plan()" if kernel == "forward" else "its schedule included")
        if config.fuse_dq == 0:
            note.append(f"with {self._dq_us[outcome.workload.problem]:.1f} us of backward_q")
        if ties:
            note.append(f"a tie with {', '.join(map(str, ties))}")
        note += [measured.note] if measured.note else []
        if throttling(measured.clocks):
            note.append(f"throttled: {throttling(measured.clocks)}")
        record = Record(
            outcome.workload.key, config, round(timing.median_us, 3), round(timing.spread, 5), outcome.tried,
            outcome.failed, outcome.dropped, dict(self._tools.versions()), dict(measured.clocks),
            datetime.now(timezone.utc).isoformat(timespec="seconds"), in_short("; ".join(note), MOST_LETTERS),
        )  # fmt: skip
        return write_record(record, self._folders[0], self._options.force or measured.replaces)

    def _place(self, workload: Workload) -> Place:
        return journal_path(workload) if self._options.storage is None else self._options.storage

    def _forget(self, workload: Workload) -> None:
        forget_studies(self._place(workload), study_name(workload))
