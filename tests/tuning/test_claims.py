"""Who has begun a trial, and whether to wait for it."""

import os
import socket
import subprocess
import sys
from datetime import datetime, timedelta

import pytest
from optuna.trial import TrialState, create_trial

from flashgen.runtime.config import Config
from flashgen.tuning import claims
from flashgen.tuning.claims import CLAIM, Watch, claim
from flashgen.tuning.study import search
from flashgen.tuning.timing import Timing

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process can be told from a later one")


def trial(signed, begun=None):
    one = create_trial(state=TrialState.RUNNING, user_attrs={} if signed is None else {CLAIM: signed})
    one.datetime_start = begun
    return one


class Clock:
    seconds = 0.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def other():
    """Another process of this system, and what it signs with."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process, {**claim(), "pid": process.pid, "started": claims.started(process.pid)}
        process.kill()


def test_another_process_is_waited_for_until_it_is_gone(other):
    process, signed = other
    clock = Clock()
    watch = Watch(clock)
    for clock.seconds in (0.0, claims.GIVEN_UP_AFTER - 1):
        assert watch.is_alive(trial(signed))
    process.kill()
    process.wait()
    assert not watch.is_alive(trial(signed))


def test_a_process_that_runs_and_measures_no_more_is_given_up(other):
    """It was stopped, or an error ended its search alone."""
    _, signed = other
    clock = Clock()
    watch = Watch(clock)
    assert watch.is_alive(trial(signed))
    clock.seconds = claims.GIVEN_UP_AFTER
    assert not watch.is_alive(trial(signed))


def test_a_process_that_nobody_has_buried_is_gone(other):
    process, signed = other
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not Watch().is_alive(trial(signed))


def test_a_later_process_of_the_same_id_is_another(other):
    _, signed = other
    assert not Watch().is_alive(trial({**signed, "started": signed["started"] - 1}))


def test_a_search_of_this_process_that_has_ended_is_not_waited_for():
    assert not Watch().is_alive(trial(claim()))


FOREIGN = {
    "another host": {"host": "far-away"},
    "another host of the same name": {"system": "0-0-0 pid:[4026531836]"},
    "another container": {"system": f"{claims.system()}1"},
    "an earlier version": {"system": None, "started": None},
}


@pytest.mark.parametrize("ahead", [-9999, 0, 9999], ids=["behind", "right", "ahead"])
@pytest.mark.parametrize("change", FOREIGN.values(), ids=FOREIGN)
def test_what_cannot_be_asked_is_given_up_by_our_own_clock(other, change, ahead):
    """Whatever the other one's clock says."""
    signed = {**other[1], "system": "0-0-0 pid:[1]", **change}
    begun = trial(signed, datetime.now() + timedelta(seconds=ahead))
    clock = Clock()
    watch = Watch(clock)
    assert watch.is_alive(begun)
    clock.seconds = claims.GIVEN_UP_AFTER - 1
    assert watch.is_alive(begun)
    clock.seconds = claims.GIVEN_UP_AFTER
    assert not watch.is_alive(begun)


def test_an_id_of_an_earlier_version_that_is_free_is_gone():
    with subprocess.Popen(["true"]) as process:
        pass
    assert not Watch().is_alive(trial({"host": socket.gethostname(), "pid": process.pid}))


MALFORMED = {
    "a text": "me", "a list": [1], "a number": 1, "empty": {}, "no host": {"pid": 1}, "no id": {"host": "here"},
    "an id of text": {"pid": "1"}, "an id that is true": {"pid": True}, "an id of all": {"pid": -1},
    "id 0": {"pid": 0}, "a huge id": {"pid": 10**30}, "an id with a fraction": {"pid": 1.5},
    "an id of lists": {"pid": [[1]]}, "a host of numbers": {"host": 1}, "a start of text": {"started": "then"},
    "a system of lists": {"system": []}, "a system with zeros": {"system": "\0"},
}  # fmt: skip


@pytest.mark.parametrize("signed", MALFORMED.values(), ids=MALFORMED)
def test_a_claim_that_is_none_is_soon_given_up(signed):
    whole = {**claim(), **signed} if isinstance(signed, dict) and len(signed) == 1 else signed
    if signed in ({"pid": 1}, {"host": "here"}):
        whole = signed
    clock = Clock()
    watch = Watch(clock)
    watch.is_alive(trial(whole))
    clock.seconds = claims.GIVEN_UP_AFTER
    assert not watch.is_alive(trial(whole))


SPACE = [Config(BM, 64, 4, stages) for BM in (32, 64, 128) for stages in (1, 2)]


def test_a_search_ends_though_the_process_of_a_trial_has_been_followed_by_another(tmp_path, other):
    """As after a reboot, or where ids are given again."""
    journal, asked = tmp_path / "study.log", []

    def measure(config, best_us):
        asked.append(config)
        return Timing(100.0, 0.01, 10)

    def stops(config, best_us):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(SPACE, [stops], place=journal)
    mine = claim()
    # Killed, it would not have said that the trial failed.
    text = "".join(line for line in journal.read_text().splitlines(True) if '"state":3' not in line)
    assert f'"pid":{mine["pid"]}' in text
    journal.write_text(text.replace(f'"pid":{mine["pid"]}', f'"pid":{other[0].pid}'))
    assert len(search(SPACE, [measure], place=journal).trials) == len(asked) == len(SPACE)
