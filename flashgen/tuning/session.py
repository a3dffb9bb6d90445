"""Tuning one workload: prune, search, time the best again, prove the winner, record it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from flashgen.printable import in_short
from flashgen.problems.problem import Problem
from flashgen.runtime.choosing import unfused
from flashgen.runtime.config import Config
from flashgen.runtime.defaults import Default, built_in
from flashgen.runtime.record_files import read_record
from flashgen.runtime.record_table import MOST_LETTERS
from flashgen.runtime.records import Record
from flashgen.runtime.registry import kernel_of
from flashgen.tuning.cache import write_record
from flashgen.tuning.candidates import Candidates, Group, group
from flashgen.tuning.clocks import throttling
from flashgen.tuning.finals import finals, settled, tied
from flashgen.tuning.outcome import Entry, Outcome, Work, entries_of
from flashgen.tuning.passed_by import passed_by
from flashgen.tuning.presets import LEAST_TRIALS, Preset
from flashgen.tuning.proofs import Proofs
from flashgen.tuning.prune import CompileRequest, Pruned, prune
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
        self._begun, self._likely = set[Group](), set[Group]()
        self._candidates = Candidates(preset, folders, options.scheduled, options.default, options.exact)
        self._dq_us: dict[Problem, float] = {}
        self._searched: dict[Workload, tuple[Searched, Config]] = {}
        self._proofs = Proofs(tools, options.default)

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
        key = workload.key
        if key.kernel == "backward_kv" and workload.problem not in self._dq_us:
            return Outcome(workload, "failed", None, 0.0, lost={"no config for backward_q": 1})
        candidates, first = self._candidates.of(workload), self._candidates.first(workload)
        return self._tune(workload, candidates, first, self._preset.of(key.kernel).trials, seconds)

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
        known = [entry.config for entry in outcome.entries]
        among = {*more, *(trial.config for trial in searched.trials)}
        found = self._tune(workload, [*known, *more], [winner, *more], None, None, among)
        return outcome if found.record is None else found

    def _tune(
        self, workload: Workload, candidates: Sequence[Config], first: Sequence[Config], trials: int | None,
        seconds: float | None, among: Collection[Config] = (),
    ) -> Outcome:  # fmt: skip
        """Search `candidates`, beginning with `first`. Again, where `among` says which of them to search alone: then
        `first` are the finalists, the study goes on, and the record that there is gives way."""
        start, again = time.monotonic(), bool(among)
        left_out = self._candidates.space(workload).dropped
        pruned = self._prune(workload, candidates, None if seconds is None else COMPILE_SHARE * seconds)
        if not pruned.kept:
            entries = entries_of((), pruned)
            return Outcome(workload, "failed", None, time.monotonic() - start, (), entries, {}, left_out)
        left = None if seconds is None else max(0.0, SEARCH_SHARE * seconds - (time.monotonic() - start))
        if self._options.force and not again and self._options.storage is None:  # A study that hosts share stays.
            self._forget(workload)
        space = [config for config in pruned.kept if config in among] if again else pruned.kept
        with self._tools.observed() as observation:
            searched = self._search(workload, pruned, space, first, Budget(trials, left, LEAST_TRIALS))
            timed = [trial.config for trial in searched.ranking]
            few = [config for config in timed if config in first] if again else timed[: self._preset.finalists]
            finalists = self._finals(workload, few)
        lost: dict[str, int] = {}
        odd, note = self._proofs.odd(workload, searched, finalists, lost)
        finalists = settled([each for each in finalists if each[0] not in odd], first)
        self._candidates.ranked(workload, [config for config in timed if config not in odd])
        with ThreadPoolExecutor(1) as aside:
            # On another GPU than the proof, where there is one.
            work = aside.submit(self._work, workload)
            winner = self._proofs.proven(workload, [config for config, _ in finalists], lost)
        ranking = tuple(Entry.of(config, pruned.compiled.get(config), timing) for config, timing in finalists)
        entries = entries_of(searched.trials, pruned)
        found = (ranking, entries, lost, left_out, work.result())
        if winner is None:
            if not again:
                self._forget(workload)  # What spoiled every config may be gone at the next run.
            return Outcome(workload, "failed", None, time.monotonic() - start, *found)
        outcome = Outcome(workload, "tuned", None, time.monotonic() - start, *found)
        timing, ties = dict(finalists)[winner], tied(finalists, winner)
        record = self._record(outcome, winner, timing, ties, observation.state, note, self._options.force or again)
        self._searched[workload] = searched, record.config
        self._learn(workload, record)
        return Outcome(workload, "tuned", record, time.monotonic() - start, *found)

    def _learn(self, workload: Workload, record: Record) -> None:
        """What a record says to the workloads that come after."""
        self._candidates.won(workload, record.config)
        if workload.key.kernel == "backward_q":
            self._dq_us[workload.problem] = record.median_us

    def prepare(self, workloads: Sequence[Workload]) -> None:
        """Have the compilers begin with what these workloads will ask for, a few configs of each before the rest.

        What was fast in one dtype will be asked for in another of its size: that one begins when the first is done. Of
        what it is likely to be, some are compiled where there is nothing else to do.
        """
        asked: list[list[CompileRequest]] = []
        likely: list[CompileRequest] = []
        seen: set[Group] = set()
        for workload in workloads:
            own, waits = group(workload), bool(seen & set(self._candidates.siblings(workload)))
            begun = self._likely if waits else self._begun
            if own not in seen | begun:
                requests = [*self._requests(workload, self._candidates.of(workload)), *self._beside(workload)]
                begun.add(own)
                if waits:
                    likely += requests[: 2 * LEAST_TRIALS]
                else:
                    asked.append(requests)
            seen.add(own)
        few = [request for requests in asked for request in requests[:LEAST_TRIALS]]
        rest = [request for requests in asked for request in requests[LEAST_TRIALS:]]
        self._tools.begin([*few, *rest, *likely])

    def _prune(self, workload: Workload, candidates: Sequence[Config], seconds: float | None) -> Pruned:
        """Compile what no earlier workload has compiled; shapes hardly matter to the compiler, so most is known.

        What time did not suffice for is left to another run: a GPU that waits for its compiler measures little.
        """
        known = self._candidates.compiled(workload)
        asked = [config for config in candidates if config not in known]
        compiled = {config: kernel_of(workload.key.kernel, config).compiled(config) for config in asked}
        least = len({compiled[config] for config in candidates[:LEAST_TRIALS] if config in compiled})
        answers = self._tools.compile(self._requests(workload, asked), seconds, least)
        known.update({config: answers[compiled[config]] for config in asked if compiled[config] in answers})
        begun = [config for config in candidates if config in known] or candidates
        return prune(begun, known, self._tools.device.capability, forgiving=self._preset.hopeless)

    def _requests(self, workload: Workload, configs: Sequence[Config]) -> list[CompileRequest]:
        target = self._tools.device.capability
        compiled = dict.fromkeys(kernel_of(workload.key.kernel, config).compiled(config) for config in configs)
        return [CompileRequest(workload.key.kernel, workload.problem, config, target) for config in compiled]

    def _beside(self, workload: Workload) -> list[CompileRequest]:
        """What proving a config of backward_q launches for dK and dV: the default, which leaves dQ to the other."""
        key = workload.key
        if key.kernel != "backward_q":
            return []
        default = self._options.default("backward_kv", key.bucket.packed)
        config = default(key.capability, key.dtype, key.head_dim, key.v_head_dim)
        return [CompileRequest("backward_kv", workload.problem, unfused(config), key.capability)]

    def _search(
        self, workload: Workload, pruned: Pruned, space: Sequence[Config], first: Sequence[Config], budget: Budget
    ) -> Searched:  # fmt: skip
        dropped = sum(1 for config in pruned.verdicts if config not in pruned.kept)
        return search(
            space,
            [partial(self._time, gpu, workload) for gpu in self._tools.gpus],
            place=self._place(workload),
            name=study_name(workload),
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

    def _record(
        self,
        outcome: Outcome,
        config: Config,
        timing: Timing,
        ties: Sequence[Config],
        clocks: Mapping[str, float],
        more: str,
        replace: bool,
    ) -> Record:
        note = [f"measured on {outcome.workload.problem}"]
        kernel = outcome.workload.key.kernel
        if kernel in self._options.scheduled:
            note.append("with a schedule prepared by plan()" if kernel == "forward" else "its schedule included")
        if config.fuse_dq == 0:
            note.append(f"with {self._dq_us[outcome.workload.problem]:.1f} us of backward_q")
        if ties:
            note.append(f"a tie with {', '.join(map(str, ties))}")
        note += [more] if more else []
        if throttling(clocks):
            note.append(f"throttled: {throttling(clocks)}")
        record = Record(
            outcome.workload.key, config, round(timing.median_us, 3), round(timing.spread, 5), outcome.tried,
            outcome.failed, outcome.dropped, dict(self._tools.versions()), dict(clocks),
            datetime.now(timezone.utc).isoformat(timespec="seconds"), in_short("; ".join(note), MOST_LETTERS),
        )  # fmt: skip
        return write_record(record, self._folders[0], replace)

    def _place(self, workload: Workload) -> Place:
        return journal_path(workload) if self._options.storage is None else self._options.storage

    def _forget(self, workload: Workload) -> None:
        forget_studies(self._place(workload), study_name(workload))
