"""What won for another shape or dtype and was not tried for this one gets a second look."""

from dataclasses import replace

import pytest
from fake_tools import BEST, DEFAULT, HALF, LONG, SHORT, Compilation, FakeTools, session, workload

from flashgen.runtime.config import Config
from flashgen.runtime.records import Record
from flashgen.runtime.usable_records import read_record
from flashgen.tuning.cache import write_record
from flashgen.tuning.passed_by import WORTH, passed_by
from flashgen.tuning.presets import LEAST_TRIALS
from flashgen.tuning.study import Searched
from flashgen.tuning.timing import Timing
from flashgen.tuning.trial import Trial
from flashgen.tuning.worker import RequestFailed

MINE, THEIRS, OTHER = Config(64, 64, 4, 2), Config(64, 32, 4, 4), Config(128, 64, 4, 3)


def searched(**times):
    """By name of a config: microseconds, or None where it failed."""
    named = {"mine": MINE, "theirs": THEIRS, "other": OTHER}
    return Searched(tuple(Trial(named[n], us and Timing(us, 0.0, 5), us or "crashed") for n, us in times.items()))


@pytest.mark.parametrize(
    ("own", "others", "found"),
    [
        ({"mine": 10.0}, [({"mine": 12.0, "theirs": 10.0}, THEIRS)], [THEIRS]),
        ({"mine": 10.0}, [({"theirs": 10.0}, THEIRS)], [THEIRS]),
        ({"mine": 10.0}, [({"mine": None, "theirs": 10.0}, THEIRS)], [THEIRS]),
        ({"mine": 10.0}, [({"mine": 10.0 * (1 + WORTH / 2), "theirs": 10.0}, THEIRS)], []),
        ({"mine": 10.0, "theirs": 11.0}, [({"mine": 12.0, "theirs": 10.0}, THEIRS)], []),
        ({"mine": 10.0, "theirs": None}, [({"mine": 12.0, "theirs": 10.0}, THEIRS)], []),
        ({"mine": 10.0}, [({"mine": 9.0}, MINE)], []),
        ({"mine": 9.0}, [({"theirs": 1}, THEIRS), ({"other": 1}, OTHER), ({"theirs": 2}, THEIRS)], [THEIRS, OTHER]),
        ({"mine": 10.0}, [], []),
    ],
)  # fmt: skip
def test_which_are_worth_it(own, others, found):
    assert passed_by(searched(**own), MINE, [(searched(**times), winner) for times, winner in others]) == found


def hurried(tools, cache, after, **options):
    """A session that had no time for LONG and found the best config for another: it, and its outcome for LONG."""
    one = session(tools, cache, "default", **options)
    first = one.tune(workload(LONG), 0.0)
    assert first.tried == LEAST_TRIALS and BEST not in {config for _, config in tools.timed}
    assert one.tune(workload(after), None).record.config == BEST
    return one, first


@pytest.mark.parametrize("options", [{}, {"force": True}])
def test_it_is_timed_beside_what_was_timed_before(cache, options):
    tools = FakeTools()
    one, first = hurried(tools, cache, SHORT, **options)
    before = {config for problem, config in tools.timed if problem == LONG}
    again = one.look_again(first)
    assert {config for problem, config in tools.timed if problem == LONG} - before == {BEST}
    assert (again.record.config, again.tried) == (BEST, first.tried + 1)
    assert read_record(cache, workload(LONG).key) == again.record
    timed = len(tools.timed)
    assert one.look_again(again) is again and len(tools.timed) == timed


def test_a_slower_clock_does_not_hide_it(cache, monkeypatch):
    tools, slower = FakeTools(), []
    plain = tools.time

    def time(*request):
        timing = plain(*request)
        return replace(timing, median_us=timing.median_us * (2 if slower else 1))

    monkeypatch.setattr(tools, "time", time)
    one, first = hurried(tools, cache, SHORT)
    slower.append(True)
    again = one.look_again(first)
    assert again.record.median_us > first.record.median_us
    assert read_record(cache, workload(LONG).key).config == again.record.config == BEST


def test_where_it_is_slower_here_the_config_stays(cache, monkeypatch):
    tools = FakeTools()
    plain = tools.time

    def time(task, config, *more):
        return Timing(900.0, 0.0, 5) if (task.problem, config) == (LONG, BEST) else plain(task, config, *more)

    monkeypatch.setattr(tools, "time", time)
    one, first = hurried(tools, cache, SHORT)
    assert one.look_again(first).record.config == first.record.config != BEST


@pytest.mark.parametrize("trouble", ["launch", "proof"])
def test_where_a_second_look_goes_wrong_the_first_stays(cache, monkeypatch, trouble):
    tools = FakeTools()
    one, first = hurried(tools, cache, SHORT)
    if trouble == "launch":
        plain = tools.time

        def time(task, config, *more):
            if config == BEST:
                raise RequestFailed("crashed")
            return plain(task, config, *more)

        monkeypatch.setattr(tools, "time", time)
    else:
        monkeypatch.setattr(tools, "outliers", lambda task, configs, arbiter: dict.fromkeys(configs, "out differs"))
    again = one.look_again(first)
    assert again.record.config == first.record.config == read_record(cache, workload(LONG).key).config
    assert again is first or again.failed == {"crashed": 1}


def test_another_dtype_of_this_size_counts_too(cache):
    tools = FakeTools()
    one = session(tools, cache, "default")
    first = one.tune(workload(LONG), 0.0)
    # Something that the search for the other dtype alone knows of.
    write_record(Record(replace(workload(HALF).key, gpu="NVIDIA H100 PCIe"), BEST, 100.0, 0.01, 20), cache)
    assert one.tune(workload(HALF), None).record.config == BEST != first.record.config
    assert one.look_again(first).record.config == BEST


def test_another_size_does_not(cache):
    one = session(FakeTools(), cache, "default")
    first = one.tune(workload(LONG), 0.0)
    assert one.tune(workload(replace(SHORT, head_dim=64, v_head_dim=64)), None).record is not None
    assert one.look_again(first) is first


def test_what_was_dropped_before_is_counted_still(cache):
    tools = FakeTools(compilation={Config(128, 128, 4, 2): Compilation(spills=4000)})
    one, first = hurried(tools, cache, SHORT)
    again = one.look_again(first)
    assert first.dropped["spills"] == 1 and again.dropped == first.dropped
    assert {e.config for e in again.entries} == {BEST} | {e.config for e in first.entries}


def test_what_was_found_before_or_failed_is_left_alone(cache):
    session(FakeTools(), cache).tune(workload(LONG), None)
    tools = FakeTools(fails={"all": "crashed"})
    one = session(tools, cache)
    found = one.existing(workload(LONG))
    lost = one.tune(workload(SHORT), None)
    timed = len(tools.timed)
    assert one.look_again(found) is found and one.look_again(lost) is lost and len(tools.timed) == timed


def test_a_search_without_a_limit_passes_nothing_by(cache):
    tools = FakeTools()
    one = session(tools, cache, "full")
    outcomes = [one.tune(workload(problem), None) for problem in (LONG, SHORT, HALF)]
    assert [one.look_again(outcome) is outcome for outcome in outcomes] == [True] * 3
    assert DEFAULT in {config for _, config in tools.timed}
