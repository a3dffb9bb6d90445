"""Which configs a search tries, and in which order."""

from dataclasses import replace

import pytest
from fake_bench import median_us
from fake_tools import BEST, HALF, LONG, SHORT, FakeTools, defaults, session, workload

from flashgen.runtime.config import Config
from flashgen.runtime.records import Record
from flashgen.tuning.cache import write_record
from flashgen.tuning.presets import LEAST_TRIALS, PRESETS
from flashgen.tuning.space import distance
from flashgen.tuning.timing import Timing


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


def test_a_limited_search_tries_the_backend_in_use_before_others(cache):
    tools = FakeTools()
    found = session(tools, cache, "quick").tune(workload(LONG), None)
    compiled = [config.backend for config in tools.compiled]
    assert found.record is not None
    assert compiled[:2] == ["hopper", "portable"]
    assert "portable" not in compiled[2:8]
