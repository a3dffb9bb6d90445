"""The pool compiles every config once, on time, and survives compilers that crash."""

import time
from collections import Counter

import pytest
from fake_compiler import Lasting

from flashgen.codegen.offline import Resources
from flashgen.problems.problem import Problem
from flashgen.runtime.config import Config
from flashgen.tuning.pool import CompilePool
from flashgen.tuning.prune import CompileRequest, prune
from flashgen.tuning.worker import RequestFailed

PROBLEM = Problem(1, 4, 4, 1024, 1024, 64, 64, "bfloat16")
CONFIGS = [Config(bm, bn, 4, stages) for bm in (32, 64) for bn in (32, 64) for stages in (1, 2)]


def requests(configs=CONFIGS):
    return [CompileRequest("forward", PROBLEM, config, "sm_90") for config in configs]


def compiled(pool, configs=CONFIGS, **limits):
    return {request.config: found for request, found in pool.answers(requests(configs), **limits).items()}


def test_every_config_is_compiled_once_and_a_crash_costs_one():
    with CompilePool("fake_compiler:make", "crash at 64 64 2", processes=2) as pool:
        results = compiled(pool)
    assert set(results) == set(CONFIGS)
    failed = {config for config, found in results.items() if isinstance(found, RequestFailed)}
    assert failed == {Config(64, 64, 4, 2)}
    pruned = prune(CONFIGS, results, "sm_90")
    assert pruned.kept == tuple(c for c in CONFIGS if c.BN != 64 or c == Config(64, 64, 4, 2))
    assert Counter(filter(None, pruned.verdicts.values())) == {"spills": 3}


def test_what_is_not_begun_in_time_stays_in_the_space():
    with CompilePool("fake_compiler:make", "slow", processes=1) as pool:
        compiled(pool, CONFIGS[:1])
        start = time.monotonic()
        results = compiled(pool, seconds=0.15)
    assert 0 < len(results) < len(CONFIGS) and time.monotonic() - start < 5
    assert set(CONFIGS) - set(results) <= set(prune(CONFIGS, results, "sm_90").kept)


def test_what_is_under_way_goes_on_for_who_asks_again():
    with CompilePool("fake_compiler:make", "slow", processes=1) as pool:
        compiled(pool, CONFIGS[:1])
        (future, *_) = pool.begin(requests(CONFIGS[1:]))
        while not future.running():
            time.sleep(0.001)
        assert compiled(pool, CONFIGS[1:], seconds=0.0) == {}
        assert pool.begin(requests(CONFIGS[1:2])) == [future] and list(compiled(pool, CONFIGS[1:2])) == CONFIGS[1:2]


def test_what_was_asked_for_last_comes_first_and_nothing_is_compiled_twice():
    with CompilePool("fake_compiler:make", "slow", processes=1) as pool:
        early = pool.begin(requests())
        late = compiled(pool, CONFIGS[-2:])
        assert list(late) == CONFIGS[-2:] and sum(1 for future in early if future.done()) <= 4
        begun = pool.begin(requests())
        assert begun == early and [future.result() for future in begun]


def test_groups_are_begun_as_they_come_and_before_what_is_begun_meanwhile():
    groups = [tuple(requests(CONFIGS[place : place + 2])) for place in (0, 2, 4)]
    with CompilePool("fake_compiler:make", "slow", processes=1) as pool:
        early, late = [], []

        def one_by_one():
            for group in groups:
                yield group
                early.extend(pool.begin(group[:1]))

        answers = pool.answers_each(one_by_one(), lambda: late.extend(pool.begin(requests(CONFIGS[6:]))))
        for group, found in zip(groups, answers, strict=True):
            assert list(found) == list(group)
        assert all(future.done() for future in early) and sum(1 for future in late if future.done()) <= 2


def test_of_what_waits_the_longest_is_begun_first():
    asked = [Lasting(config, length) for config, length in zip(CONFIGS[1:], (1, 3, 2, 4), strict=False)]
    with CompilePool("fake_compiler:make", "slow", processes=1) as pool:
        pool.begin(requests(CONFIGS[:1]))
        done = []
        for request, future in zip(asked, pool.begin(asked), strict=True):
            future.add_done_callback(lambda _, length=request.length: done.append(length))
        list(pool.answers_each([asked[:2], asked[2:]]))
    assert done == [3, 1, 4, 2]  # The group that is waited for comes before others.


def test_where_they_were_started_processes_are_forked_before_a_first_request(tmp_path):
    mark = tmp_path / "prepared"
    with CompilePool("fake_bench:Prepared", str(mark), processes=2) as pool:
        pool.fork()
        assert not mark.exists()
        pool.start()
        time.sleep(0.3)
        assert not mark.exists()
        pool.fork()
        end = time.monotonic() + 60
        while not mark.exists() and time.monotonic() < end:
            time.sleep(0.01)
        mark.unlink()
        assert pool.answers(["who"])["who"] and not mark.exists()


def test_closing_ends_what_is_under_way():
    with CompilePool("fake_compiler:make", "slow", processes=2) as pool:
        pool.begin(requests())
        start = time.monotonic()
    assert time.monotonic() - start < 5


def test_where_all_spill_spills_are_forgiven():
    with CompilePool("fake_compiler:make", "", processes=1) as pool:
        spilling = [config for config in CONFIGS if config.BN == 64]
        results = compiled(pool, spilling)
    assert prune(spilling, results, "sm_90").kept == tuple(spilling)


def test_three_consumers_may_not_spill_where_two_may():
    two, three = (Config(64 * consumers, 128, 4, 2, "hopper", ping_pong=1) for consumers in (2, 3))
    few = Resources(128, 40, 100_000, False, 1.0, None)
    pruned = prune([two, three], {two: few, three: few}, "sm_90")
    assert pruned.verdicts == {two: "", three: "spills"}


@pytest.mark.parametrize(("capability", "kept"), [("sm_90", True), ("sm_86", False)])
def test_shared_memory_is_judged_by_the_gpu(capability, kept):
    with CompilePool("fake_compiler:make", "", processes=1) as pool:
        config = Config(256, 32, 4, 1)
        results = compiled(pool, [config])
    assert bool(prune([config], results, capability).kept) is kept
