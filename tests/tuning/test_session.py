"""A workload from the search to the record, on a machine that is all pretence."""

import math
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest
from fake_bench import median_us

from flashgen.problems.problem import Problem
from flashgen.runtime.config import Config
from flashgen.runtime.defaults import default_config, portable_default
from flashgen.runtime.identity import Identity
from flashgen.runtime.records import Device, Record
from flashgen.runtime.usable_records import read_record
from flashgen.tuning.cache import write_record
from flashgen.tuning.clocks import Observation
from flashgen.tuning.outcome import Work
from flashgen.tuning.presets import LEAST_TRIALS, PRESETS
from flashgen.tuning.session import Options, Session
from flashgen.tuning.space import distance
from flashgen.tuning.storage import journal_path
from flashgen.tuning.timing import Timing
from flashgen.tuning.worker import RequestFailed
from flashgen.tuning.workloads import workloads

DEVICE = Device("NVIDIA H200", "sm_90", "3.6")
DEFAULT = default_config("sm_90", "bfloat16", 128, 128)
BEST = Config(128, 64, 8, 3)
SHORT, LONG = (Problem(2, 16, 16, length, length, 128, 128, "bfloat16") for length in (2048, 8192))


IDENTITY = Identity(
    "alibi", "0123456789ab", dict.fromkeys(("forward", "backward_kv", "backward_q"), "ba9876543210"), "alibi.yaml", {}
)


@dataclass(frozen=True)
class Compilation:
    registers: int = 128
    spills: int = 0
    shared: int = 1024
    serialized_wgmma: bool = False
    error: str | None = None


@dataclass
class FakeTools:
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

    def rehearse(self, workload, config):
        return []

    def prepare(self, problem):
        pass

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


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    return tmp_path / "tuned"


def session(tools, cache, preset="full", **options):
    return Session(tools, PRESETS[preset], [cache], Options(**options))


def workload(problem):
    (only,) = workloads([problem], IDENTITY, DEVICE)
    return only


def test_the_best_config_is_found_proven_and_recorded(cache):
    tools = FakeTools(fails={Config(64, 32, 4, 1): "out of resources"})
    outcome = session(tools, cache).tune(workload(LONG), None)
    assert (outcome.status, outcome.record.config, tools.proven) == ("tuned", BEST, [BEST])
    on_disk = read_record(cache, workload(LONG).key)
    assert on_disk.config == BEST == Config(128, 64, 8, 3)
    assert on_disk.failed == {"out of resources": 1} and on_disk.dropped["shared memory"] > 0
    assert on_disk.tried == outcome.tried == len({config for _, config in tools.timed})
    assert (on_disk.versions, on_disk.clocks) == (
        {"triton": "3.6.0"},
        {"limits": 0.0, "sm_max_mhz": 1980.0, "sm_mhz": 1965.0},
    )
    assert "out of resources 1" in str(outcome) and "100.0 us" in str(outcome)


def test_a_finalist_that_computes_something_else_than_the_others_is_dropped_and_said(cache):
    """Though it is the fastest, and passes its proof, which is at a smaller size."""
    tools = FakeTools(odd={BEST})
    outcome = session(tools, cache).tune(workload(LONG), None)
    ((configs, arbiter),) = tools.compared
    assert configs[0] == BEST and len(configs) > 2 and arbiter not in configs
    assert outcome.record.config == outcome.ranking[0].config == configs[1] and BEST not in tools.proven
    assert outcome.failed["outputs differ"] == 1 and "outputs differ 1" in str(outcome)
    assert f"{BEST}: dV differs in 3 rows" in outcome.record.note
    on_disk = read_record(cache, workload(LONG).key)
    assert on_disk.config == configs[1] and on_disk.failed["outputs differ"] == 1
    assert on_disk == outcome.record


def test_a_tie_behind_a_finalist_that_is_dropped_changes_no_config_that_is_known(cache, monkeypatch):
    tools = FakeTools(odd={BEST})
    times = {BEST: 50.0, DEFAULT: 100.2}
    monkeypatch.setattr(tools, "time", lambda _, config, *rest: Timing(times.get(config, 100.0), 0.01, 10))
    monkeypatch.setattr("flashgen.tuning.study.Searched.ranking", property(ranked_with_the_default))
    assert session(tools, cache).tune(workload(LONG), None).record.config == DEFAULT


def ranked_with_the_default(searched):
    """A few that tie, with the default among them: it may be behind more than there are finalists."""
    timed = {trial.config: trial for trial in searched.trials if trial.timing}
    if BEST not in timed:
        return list(timed.values())
    return [timed.pop(BEST), timed.pop(next(config for config in timed if config != DEFAULT)), timed.pop(DEFAULT)]


def test_however_much_differs_the_record_can_be_read(cache, monkeypatch):
    tools = FakeTools()
    monkeypatch.setattr(tools, "outliers", lambda _, configs, arbiter: dict.fromkeys(configs[:3], "dV differs " * 99))
    record = session(tools, cache).tune(workload(LONG), None).record
    assert read_record(cache, workload(LONG).key) == record
    assert record.note.startswith("measured on B2 H16") and "dV differs" in record.note


def test_where_no_two_finalists_agree_nothing_is_recorded(cache):
    tools = FakeTools()
    tools.outliers = lambda workload, configs, arbiter: dict.fromkeys(configs, "out differs in 9 rows")
    outcome = session(tools, cache).tune(workload(LONG), None)
    assert (outcome.status, outcome.record, tools.proven) == ("failed", None, [])
    assert outcome.lost["outputs differ"] > 1 and read_record(cache, workload(LONG).key) is None


def test_a_comparison_that_fails_is_noted(cache):
    record = session(FakeTools(odd="out of memory"), cache).tune(workload(LONG), None).record
    assert record.config == BEST and "not compared: out of memory" in record.note


def test_a_throttled_run_is_marked_in_its_record(cache):
    slow = FakeTools(clocks=("210, 1980, 0x1", "1650, 1980, 0x4", "1700, 1980, 0x4", "1980, 1980, 0x0"))
    record = session(slow, cache, "quick").tune(workload(LONG), None).record
    assert record.clocks == {"sm_mhz": 1700.0, "sm_max_mhz": 1980.0, "limits": 4.0}
    assert "throttled: the clock ran at 1700 of 1980 MHz, held back by the power cap" in record.note
    steady = session(FakeTools(), cache, "quick").tune(workload(SHORT), None).record
    assert "throttled" not in steady.note


def test_a_record_is_found_and_force_measures_anew(cache):
    session(FakeTools(), cache).tune(workload(LONG), None)
    tools = FakeTools()
    again = session(tools, cache).existing(workload(LONG))
    assert (again.status, again.record.config, tools.timed) == ("found", BEST, [])
    forced = session(tools, cache, force=True).tune(workload(LONG), None)
    assert forced.tried == len({config for _, config in tools.timed}) > 0


def test_times_of_another_size_in_the_bucket_are_not_taken_for_those_of_this_one(cache):
    """Where the record of the one is gone, or its search was interrupted."""
    tools = FakeTools()
    session(tools, cache, "quick").tune(workload(LONG), None)
    shorter = replace(LONG, q_len=5000, kv_len=5000)
    assert workload(shorter).key == workload(LONG).key
    tools.timed.clear()
    outcome = session(tools, cache, "quick").tune(workload(shorter), None)
    assert len({config for _, config in tools.timed}) == outcome.tried == PRESETS["quick"].trials
    assert {problem for problem, _ in tools.timed} == {shorter}


def test_quick_stays_within_its_trials_and_compiles_few(cache):
    tools = FakeTools()
    outcome = session(tools, cache, "quick").tune(workload(LONG), 10.0)
    quick = PRESETS["quick"]
    assert outcome.tried <= quick.trials and len(tools.compiled) <= quick.candidates
    assert tools.timed[0] == (LONG, DEFAULT)
    assert len(tools.timed) <= quick.trials + quick.finalists * quick.rounds


def test_what_does_not_fit_spills_or_serializes_is_never_launched(cache):
    hopeless = {
        Config(128, 64, 8, 4): Compilation(shared=228 * 1024),
        Config(128, 64, 8, 2): Compilation(spills=4000),
        Config(64, 64, 8, 3): Compilation(serialized_wgmma=True),
        Config(128, 128, 8, 3): Compilation(error="ptxas: too many registers"),
    }
    tools = FakeTools(compilation=hopeless)
    outcome = session(tools, cache).tune(workload(LONG), None)
    assert not {config for _, config in tools.timed} & set(hopeless)
    for reason in ("spills", "serialized WGMMA", "does not compile"):
        assert outcome.dropped[reason] == 1
    assert outcome.record.config == BEST


def test_a_winner_that_computes_something_else_is_not_recorded(cache):
    tools = FakeTools(wrong={BEST})
    outcome = session(tools, cache).tune(workload(LONG), None)
    assert tools.proven[0] == BEST != outcome.record.config
    assert outcome.failed == {"verification": 1}


@pytest.mark.parametrize("trouble", [{"fails": {"all": "crashed"}}, {"wrong": {"all"}}])
def test_where_nothing_works_nothing_is_recorded_and_the_next_run_begins_anew(cache, trouble):
    outcome = session(FakeTools(**trouble), cache, "quick").tune(workload(LONG), None)
    assert (outcome.status, outcome.record) == ("failed", None)
    assert list(cache.rglob("*.json")) == []
    assert "no config worked" in str(outcome)
    assert session(FakeTools(), cache).tune(workload(LONG), None).record.config == BEST


def test_a_neighbours_winner_is_tried_early(cache):
    session(FakeTools(), cache).tune(workload(SHORT), None)
    tools = FakeTools()
    session(tools, cache, "quick").tune(workload(LONG), None)
    assert (LONG, BEST) in tools.timed[:2]


@pytest.mark.parametrize("problem", [SHORT, LONG])
def test_the_winner_of_a_sibling_gpu_is_tried_early(cache, problem):
    odd = Config(32, 32, 8, 1)
    key = replace(workload(problem).key, gpu="NVIDIA H100 PCIe")
    write_record(Record(key, odd, 100.0, 0.01, 20), cache)
    tools = FakeTools()
    one = session(tools, cache, "quick")
    assert one.existing(workload(LONG)) is None
    one.tune(workload(LONG), None)
    assert (LONG, odd) in tools.timed[:3]


def test_winners_of_a_run_help_its_other_dtypes_and_compilations_are_shared(cache):
    tools = FakeTools()
    one = session(tools, cache)
    one.tune(workload(LONG), None)
    compiled = len(tools.compiled)
    one.tune(workload(SHORT), None)
    assert len(tools.compiled) == compiled
    half = replace(LONG, dtype="float16")
    one.tune(workload(half), None)
    assert (half, BEST) in [entry for entry in tools.timed if entry[0] == half][:2]


HALF = replace(LONG, dtype="float16")


@pytest.mark.parametrize("preset", ["quick", "default"])
def test_another_dtype_chooses_from_what_was_fast(cache, preset):
    tools = FakeTools()
    one = session(tools, cache, preset)
    first = one.tune(workload(LONG), None)
    fast = [config for _, config in sorted(tools.timed, key=lambda entry: median_us(entry[1]))]
    compiled = len(tools.compiled)
    outcome = one.tune(workload(HALF), None)
    assert outcome.record.config == first.record.config
    assert outcome.tried >= LEAST_TRIALS and len(tools.compiled) - compiled < compiled
    assert set(tools.compiled[compiled:]) <= {*fast, *defaults("float16")}


def test_a_shape_of_another_space_chooses_for_itself(cache):
    tools = FakeTools()
    one = session(tools, cache, "default")
    one.tune(workload(LONG), None)
    one.tune(workload(replace(LONG, q_len=16)), None)
    tried = [config for problem, config in tools.timed if problem.q_len == 16]
    assert any(config.BM == 16 for config in tried)


def defaults(dtype):
    sizes = ("sm_90", dtype, 128, 128)
    return [default_config(*sizes), portable_default("forward", False, *sizes)]


@pytest.mark.parametrize("seconds", [0.0, None])
@pytest.mark.parametrize("preset", PRESETS)
def test_the_default_of_each_backend_is_tried_whatever_the_time(cache, preset, seconds):
    tools = FakeTools()
    one = session(tools, cache, preset)
    for problem in (LONG, HALF, SHORT):
        one.tune(workload(problem), seconds)
        tried = [config for which, config in tools.timed if which == problem]
        assert set(defaults(problem.dtype)) <= set(tried)
        assert len(set(tried)) >= LEAST_TRIALS


def test_another_shape_waits_for_no_compiler_where_enough_is_compiled(cache):
    tools = FakeTools()
    one = session(tools, cache, "default")
    for problem in (LONG, SHORT):
        one.tune(workload(problem), 0.0)
        assert len(tools.waited) == LEAST_TRIALS


def test_the_first_config_is_the_variants_own_default(cache):
    own = Config(128, 32, 4, 2)
    tools = FakeTools()
    session(tools, cache, "quick", defaults={"forward": lambda *_: own}).tune(workload(LONG), None)
    assert tools.timed[0] == (LONG, own)


@pytest.mark.parametrize(("portable_us", "is_searched"), [(120.0, True), (130.0, False)])
def test_another_backend_is_searched_where_its_default_comes_near(cache, monkeypatch, portable_us, is_searched):
    tools = FakeTools()
    times = {"hopper": 100.0, "portable": portable_us}
    monkeypatch.setattr(tools, "time", lambda _, config, *rest: Timing(times[config.backend], 0.01, 10))
    session(tools, cache, "default").tune(workload(LONG), None)
    compiled = [config for config in tools.compiled if config.backend == "portable"]
    assert compiled[0] == defaults("bfloat16")[1] and (len(compiled) > 1) == is_searched


def test_the_backend_of_the_fastest_of_the_first_few_is_compiled_first(cache, monkeypatch):
    usual = defaults("bfloat16")[1]
    best = Config(usual.BM, usual.BN // 2, usual.num_warps, usual.num_stages + 1)
    tools = FakeTools()
    everything = tools.compile

    def compile_a_few(requests, seconds):
        return everything(requests[: None if seconds is None else 24], seconds)

    def time(workload, config, *_):
        tools.timed.append((workload.problem, config))
        slower = 10.0 * distance(config, best) if config.backend == "portable" else 60.0
        return Timing(100.0 + slower, 0.01, 10)

    monkeypatch.setattr(tools, "compile", compile_a_few)
    monkeypatch.setattr(tools, "time", time)
    assert session(tools, cache, "default").tune(workload(LONG), 60.0).record.config == best


@pytest.mark.parametrize("preset", ["full", "quick"])
def test_force_begins_a_study_anew_once_and_only_where_something_compiles(cache, preset):
    task = workload(LONG)
    session(FakeTools(), cache, preset).tune(task, None)
    kept = journal_path(task).read_bytes()
    broken = FakeTools()
    error = Compilation(error="it does not compile")
    broken.compile = lambda requests, seconds: {request.config: error for request in requests}
    assert session(broken, cache, preset, force=True).tune(task, None).status == "failed"
    assert journal_path(task).read_bytes() == kept
    again = FakeTools()
    outcome = session(again, cache, preset, force=True).tune(task, None)
    # What the first few told is not forgotten again, nor measured twice.
    searched = [config for _, config in again.timed]
    assert outcome.tried == len(set(searched)) and len(searched) > len(set(searched))
    assert searched[:LEAST_TRIALS] == list(dict.fromkeys(searched[:LEAST_TRIALS]))


def test_problems_of_one_bucket_are_one_workload():
    near = replace(LONG, q_len=8000, kv_len=8000)
    assert [w.problem for w in workloads([LONG, near, SHORT], IDENTITY, DEVICE)] == [LONG, SHORT]


def test_a_limited_search_tries_the_backend_in_use_before_others(cache):
    tools = FakeTools()
    found = session(tools, cache, "quick").tune(workload(LONG), None)
    compiled = [config.backend for config in tools.compiled]
    assert found.record is not None
    assert compiled[:2] == ["hopper", "portable"]
    assert "portable" not in compiled[2:8]


@pytest.mark.parametrize(("before", "after"), [("full", "default"), ("default", "quick"), ("quick", "full")])
@pytest.mark.parametrize("shared", [False, True], ids=["journal", "database"])
def test_what_one_preset_measured_counts_for_another(cache, before, after, shared):
    """A search that was broken off left no record, but its trials."""
    told, count = [], PRESETS[before].trials or 40

    def watch(workload, trial, dropped):
        told.append(trial.config)
        if len(told) == count:
            raise KeyboardInterrupt

    storage = f"sqlite:///{cache.parent}/study.db" if shared else None
    with pytest.raises(KeyboardInterrupt):
        Session(FakeTools(), PRESETS[before], [cache], Options(storage=storage), watch).tune(workload(LONG), None)
    outcome = Session(FakeTools(), PRESETS[after], [cache], Options(storage=storage), watch).tune(workload(LONG), None)
    assert len(told) == len(set(told)) and outcome.tried >= len(told) - count
    assert outcome.record.config in told


@pytest.mark.parametrize("odd_us", [math.nan, math.inf, -5.0, 0.0, 1e-320, 1e300])
@pytest.mark.parametrize("which", [BEST, "all"], ids=["one", "all"])
def test_a_time_that_no_clock_has_told_is_a_failure_of_its_config(cache, monkeypatch, odd_us, which):
    """Neither the study, which JSON keeps, nor a record may have it."""
    tools = FakeTools()

    def time(workload, config, milliseconds, best_us):
        return Timing(odd_us if which in (config, "all") else median_us(config), 0.01, 10)

    monkeypatch.setattr(tools, "time", time)
    for _ in range(2):
        outcome = session(tools, cache).tune(workload(LONG), None)
        assert outcome.failed == {"impossible time": 1 if which == BEST else outcome.tried}
        assert (outcome.record is None) == (which == "all")
