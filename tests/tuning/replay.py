"""A machine that answers from a table of what a real one measured."""

import math
import random
from contextlib import nullcontext
from dataclasses import dataclass, field

from fake_compiler import Compilation, NothingToPrepare

from flashgen.runtime.defaults import portable_default
from flashgen.tuning.clocks import Observation
from flashgen.tuning.presets import chosen
from flashgen.tuning.session import Options, Session
from flashgen.tuning.timing import Timing
from flashgen.tuning.worker import RequestFailed


@dataclass
class Replay(NothingToPrepare):
    """`noise` is the standard deviation of a measurement around the table's value, as a share."""

    table: object
    seed: int
    noise: float = 0.003
    launched: list = field(default_factory=list)

    def __post_init__(self):
        key = self.table.workload.key
        self.device = type("Device", (), {"gpu": key.gpu, "capability": key.capability, "triton": key.triton})()
        self.gpus = [self]
        self._entries = {entry.config: entry for entry in self.table.entries}
        self._chance = random.Random(self.seed)

    def compile(self, requests, seconds):
        return {request.config: self._compiled(request.config) for request in requests}

    def _compiled(self, config):
        entry = self._entries.get(config)
        if entry is None or entry.dropped == "does not compile":
            return Compilation(None, None, 0, False, "it does not compile")
        if entry.shared is None:
            return RequestFailed("timed out")
        return Compilation(entry.registers, entry.spills, entry.shared, entry.serialized_wgmma, None)

    def time(self, workload, config, milliseconds, best_us):
        self.launched.append(config)
        entry = self._entries[config]
        if entry.timing is None:
            raise RequestFailed(entry.failure)
        factor = math.exp(self._chance.gauss(0, self.noise))
        return Timing(entry.timing.median_us * factor, entry.timing.spread, entry.timing.repetitions)

    def outliers(self, workload, configs, arbiter):
        return {}

    def prove(self, workload, config):
        return ""

    def work(self, workload):
        return self.table.work

    def versions(self):
        return {}

    def observed(self):
        return nullcontext(Observation())


def replay(table, seed, folder, trials=None, **options):
    """Tune the table's workload by the default preset; return the outcome and what was launched.

    Nothing is known before. A table of the portable backend alone is one of a machine that has no other in use.
    """
    tools, kernel = Replay(table, seed), table.workload.key.kernel
    if all(entry.config.backend == "portable" for entry in table.entries):
        scheduled = kernel in options.get("scheduled", ())
        options["defaults"] = {kernel: lambda *sizes: portable_default(kernel, scheduled, *sizes[:4])}
    session = Session(tools, chosen("default", trials), [folder], Options(seed=seed, **options))
    return session.tune(table.workload, None), tools.launched
