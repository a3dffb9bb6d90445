"""A workload from the search to the record, on a machine that is all pretence."""

import math
from dataclasses import replace

import pytest
from fake_bench import median_us
from fake_tools import (
    BEST,
    DEFAULT,
    DEVICE,
    IDENTITY,
    LONG,
    SHORT,
    Compilation,
    FakeTools,
    session,
    workload,
)

from flashgen.runtime.config import Config
from flashgen.runtime.usable_records import read_record
from flashgen.tuning.presets import LEAST_TRIALS, PRESETS
from flashgen.tuning.session import Options, Session
from flashgen.tuning.storage import journal_path
from flashgen.tuning.timing import Timing
from flashgen.tuning.workloads import workloads


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
