"""Which finalists of a search compute what they should."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

from flashgen.codegen.rehearsal import Wanted
from flashgen.runtime.config import Config
from flashgen.runtime.defaults import Default
from flashgen.runtime.registry import kernel_of
from flashgen.tuning.study import Searched
from flashgen.tuning.timing import Timing
from flashgen.tuning.tools import Tools
from flashgen.tuning.worker import RequestFailed
from flashgen.tuning.workloads import Workload


class Proofs:
    """Compares finalists with each other and proves winners, each proof once. `default` gives a kernel's built-in
    default, also that for packed sequences."""

    def __init__(self, tools: Tools, default: Callable[[str, bool], Default]) -> None:
        self._tools, self._default = tools, default
        self._right = set[Hashable]()
        self._needs = dict[Hashable, Sequence[Wanted]]()

    def odd(
        self, workload: Workload, searched: Searched, finalists: Sequence[tuple[Config, Timing]], lost: dict[str, int]
    ) -> tuple[Mapping[Config, str], str]:
        """The finalists that do not compute what the others do, counted in `lost`, and what there is to note of it."""
        configs = [config for config, _ in finalists]
        if len(configs) < 2:
            return {}, ""
        key = workload.key
        sizes = (key.capability, key.dtype, key.head_dim, key.v_head_dim)
        default = self._default(key.kernel, key.bucket.packed)(*sizes, key.bucket)
        others = (default, *(trial.config for trial in searched.ranking))
        arbiter = next((config for config in others if config not in configs), default)
        try:
            odd = self._tools.gpus[0].outliers(workload, configs, arbiter)
        except RequestFailed as failure:
            return {}, f"its finalists were not compared: {failure.reason}"
        if odd:
            lost["outputs differ"] = len(odd)
        said = [f"{config}: {why}" for config, why in odd.items()]
        return odd, f"finalists whose outputs differ: {'; '.join(said)}" if said else ""

    def needs(self, workload: Workload, config: Config) -> Sequence[Wanted]:
        """What the proof of a config has to have compiled; nothing where that is not to be known, or it was given."""
        proof = _proof(workload, config)
        if proof in self._right:
            return ()
        if proof not in self._needs:
            try:
                self._needs[proof] = self._tools.gpus[0].rehearse(workload, config)
            except RequestFailed:  # The proof compiles it, or fails of the same.
                self._needs[proof] = ()
        return self._needs[proof]

    def begin(self, workload: Workload, finalists: Sequence[Config]) -> None:
        """Have compiled what the proof of the fastest needs."""
        self._compiled(workload, finalists[:1])

    def are_ready(self, workload: Workload, finalists: Sequence[Config]) -> bool:
        """Whether the proof of the fastest waits for no compiler."""
        return all(future.done() for future in self._compiled(workload, finalists[:1]))

    def _compiled(self, workload: Workload, configs: Sequence[Config]) -> Sequence[Future[Any]]:
        return self._tools.begin([each for config in configs for each in self.needs(workload, config)])

    def proven(self, workload: Workload, finalists: Sequence[Config], lost: dict[str, int]) -> Config | None:
        """The fastest finalist that computes the variant's formula; the others are counted by reason in `lost`."""
        for config in finalists:
            proof = _proof(workload, config)
            if proof in self._right:
                return config
            wait(self._compiled(workload, [config]))
            try:
                reason = "verification" if self._tools.gpus[0].prove(workload, config) else ""
            except RequestFailed as failure:
                reason = failure.reason
            if not reason:
                self._right.add(proof)
                return config
            lost[reason] = lost.get(reason, 0) + 1
        return None


def _proof(workload: Workload, config: Config) -> Hashable:
    """What a proof is of: this kernel, as it is compiled for a KV head of so many rows, at sizes cut down, so that it
    holds for the other shapes of a dtype too."""
    key, problem = workload.key, workload.problem
    group = problem.heads // problem.kv_heads
    launched = kernel_of(key.kernel, config).as_launched(config, problem.q_len * group)
    form = (group, problem.mode, problem.block_size, problem.cache)
    return key.kernel, key.dtype, key.head_dim, key.v_head_dim, *form, launched
