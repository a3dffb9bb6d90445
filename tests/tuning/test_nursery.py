"""Processes that are forked from one that is ready: the factory is called once, and each is its own."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from flashgen.runtime.config import Config
from flashgen.tuning.nursery import Nursery
from flashgen.tuning.worker import RequestFailed, Worker

FACTORY = "fake_bench:make"  # beside this file, where pytest finds it, and the nursery with it


@pytest.fixture
def nursery():
    one = Nursery(FACTORY, "good day")
    yield one
    one.close()


@pytest.fixture
def worker(nursery):
    with Worker(FACTORY, "good day", nursery=nursery) as one:
        yield one


def test_workers_of_a_nursery_answer_each_from_a_process_of_its_own(nursery, worker):
    with Worker(FACTORY, "good day", nursery=nursery) as other:
        pids = [one.ask("pid", 30) for one in (worker, other, worker)]
        assert pids == [worker.pid, other.pid, worker.pid] and len({*pids, os.getpid()}) == 3
        assert other.ask("greeting", 30) == "good day"
        assert other.ask(Config(128, 64, 8, 3), 30).median_us == pytest.approx(100)


@pytest.mark.parametrize(
    ("request_", "seconds", "reason"),
    [("crash", 30, "crashed"), ("hang", 0.3, "timed out"), ("break", 30, "ZeroDivisionError")],
)
def test_a_failure_costs_the_process_and_that_request_alone(nursery, worker, request_, seconds, reason):
    before = worker.ask("pid", 30)
    with pytest.raises(RequestFailed) as failure:
        worker.ask(request_, seconds)
    assert failure.value.reason == reason
    assert worker.ask("pid", 30) != before
    assert gone(before)


def test_a_nursery_that_was_killed_is_replaced(nursery, worker):
    before = worker.ask("pid", 30)
    os.kill(nursery.pid, signal.SIGKILL)
    assert gone(before)
    try:
        answer = worker.ask("pid", 30)
    except RequestFailed as failure:
        assert failure.reason == "crashed"
        answer = worker.ask("pid", 30)
    assert answer != before


def test_a_factory_that_fails_says_why():
    nursery = Nursery(FACTORY, "refuse")
    with Worker(FACTORY, "refuse", nursery=nursery) as worker, pytest.raises(RequestFailed, match="nothing to measure"):
        worker.ask("pid", 30)
    nursery.close()


def test_what_answers_is_prepared_once_for_all():
    nursery = Nursery("fake_bench:Prepared", "whole")
    workers = [Worker("fake_bench:Prepared", "whole", nursery=nursery) for _ in range(2)]
    answers = [worker.ask("who", 30) for worker in workers]
    assert answers == [nursery.pid] * 2 and nursery.pid not in [worker.pid for worker in workers]
    for each in (*workers, nursery):
        each.close()


def test_what_cannot_be_prepared_says_why():
    nursery = Nursery("fake_bench:Prepared", "broken")
    worker = Worker("fake_bench:Prepared", "broken", nursery=nursery)
    with worker, pytest.raises(RequestFailed, match="nothing to prepare"):
        worker.ask("who", 30)
    nursery.close()


def test_no_process_stays_behind_and_a_closed_nursery_forks_no_more(nursery, worker):
    pids = [worker.ask("pid", 30), nursery.pid]
    nursery.close()
    worker.close()
    assert all(gone(pid) for pid in pids)
    with pytest.raises(RequestFailed, match="crashed"):
        worker.ask("pid", 30)


HOLD = """
    import sys, time
    from flashgen.tuning.pool import CompilePool
    pool = CompilePool("fake_bench:make", "good day", processes=1)
    print(pool.answers(["pid"])["pid"], pool._nursery.pid, flush=True)
    pool.begin(["hang"])
    time.sleep(60)
"""


def test_with_a_parent_killed_with_9_all_of_them_go():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(HOLD)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        pids = list(map(int, parent.stdout.readline().split()))
        parent.kill()
    assert len(pids) == 2 and all(gone(pid) for pid in pids)


def gone(pid):
    """Whether a process ends within some seconds; one that nobody waits for may stay as a name."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False
