"""A machine that is all pretence, and what is searched on it."""

from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from fake_bench import median_us
from fake_compiler import Compilation, NothingToPrepare

from flashgen.problems.problem import Problem
from flashgen.runtime.config import Config
from flashgen.runtime.defaults import default_config, portable_default
from flashgen.runtime.identity import Identity
from flashgen.runtime.records import Device
from flashgen.tuning.clocks import Observation
from flashgen.tuning.outcome import Work
from flashgen.tuning.presets import PRESETS
from flashgen.tuning.session import Options, Session
from flashgen.tuning.timing import Timing
from flashgen.tuning.worker import RequestFailed
from flashgen.tuning.workloads import workloads

DEVICE = Device("NVIDIA H200", "sm_90", "3.6")
DEFAULT = default_config("sm_90", "bfloat16", 128, 128)
BEST = Config(128, 64, 8, 3)
SHORT, LONG = (Problem(2, 16, 16, length, length, 128, 128, "bfloat16") for length in (2048, 8192))
HALF = replace(LONG, dtype="float16")
IDENTITY = Identity(
    "alibi", "0123456789ab", dict.fromkeys(("forward", "backward_kv", "backward_q"), "ba9876543210"), "alibi.yaml", {}
)


@dataclass
class FakeTools(NothingToPrepare):
    device: Device = DEVICE
    timed: list = field(default_factory=list)
    begun: list = field(default_factory=list)
    compiled: list = field(default_factory=list)
    waited: list = field(default_factory=list)
    proven: list = field(default_factory=list)
    fails: dict = field(default_factory=dict)
    wrong: set = field(default_factory=set)
    odd: set | str = field(default_factory=set)
    compared: list = field(default_factory=list)
    compilation: dict = field(default_factory=dict)
    clocks: tuple = ("1965, 1980, 0x0000000000000000",)

    @property
    def gpus(self):
        return [self]

    def work(self, workload):
        return Work(4e12, 2e8, 700.0, 4000.0)

    def time(self, workload, config, milliseconds, best_us):
        self.timed.append((workload.problem, config))
        if config in self.fails or "all" in self.fails:
            raise RequestFailed(self.fails.get(config, "crashed"))
        return Timing(median_us(config), 0.01, 10)

    def outliers(self, workload, configs, arbiter):
        self.compared.append((tuple(configs), arbiter))
        if isinstance(self.odd, str):
            raise RequestFailed(self.odd)
        return {config: "dV differs in 3 rows" for config in configs if config in self.odd}

    def prove(self, workload, config):
        self.proven.append(config)
        return "error 3.0 of 1.0 allowed" if config in self.wrong or "all" in self.wrong else ""

    def begin(self, requests):
        self.begun += requests
        return []

    def compile(self, requests, seconds):
        self.compiled += [request.config for request in requests]
        self.waited += [config for config in self.compiled[-len(requests) :] if seconds is None and requests]
        return {request.config: self.compilation.get(request.config, Compilation()) for request in requests}

    def versions(self):
        return {"triton": "3.6.0"}

    @contextmanager
    def observed(self):
        observation = Observation()
        for line in self.clocks:
            observation.add(line, ["sm_mhz", "sm_max_mhz", "limits"])
        yield observation


def session(tools, cache, preset="full", **options):
    return Session(tools, PRESETS[preset], [cache], Options(**options))


def workload(problem):
    (only,) = workloads([problem], IDENTITY, DEVICE)
    return only


def defaults(dtype):
    sizes = ("sm_90", dtype, 128, 128)
    return [default_config(*sizes), portable_default("forward", False, *sizes)]
