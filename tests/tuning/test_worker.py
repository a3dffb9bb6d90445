"""A worker that crashes, hangs or is killed costs one request."""

import os
import signal
import threading

import pytest

from flashgen.runtime.config import Config
from flashgen.tuning.worker import RequestFailed, Worker

FACTORY = "fake_bench:make"  # beside this file, where pytest finds it, and the worker with it


@pytest.fixture
def worker():
    with Worker(FACTORY, "good day") as one:
        yield one


def test_answers_come_from_one_process_made_with_the_arguments(worker):
    assert worker.ask("greeting", 30) == "good day"
    assert worker.ask("pid", 30) == worker.ask("pid", 30) == worker.pid != os.getpid()
    assert worker.ask(Config(128, 64, 8, 3), 30).median_us == pytest.approx(100)


def test_a_failure_that_the_factory_knows_leaves_the_process_alone(worker):
    before = worker.ask("pid", 30)
    with pytest.raises(RequestFailed, match="shared memory") as failure:
        worker.ask("refuse", 30)
    assert failure.value.reason == "out of resources"
    assert worker.ask("pid", 30) == before


@pytest.mark.parametrize(
    ("request_", "seconds", "reason"),
    [("crash", 30, "crashed"), ("hang", 0.3, "timed out"), ("break", 30, "ZeroDivisionError")],
)
def test_any_other_failure_costs_the_process_and_that_request_alone(worker, request_, seconds, reason):
    before = worker.ask("pid", 30)
    with pytest.raises(RequestFailed) as failure:
        worker.ask(request_, seconds)
    assert failure.value.reason == reason
    assert worker.ask("pid", 30) != before
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)


def test_a_worker_killed_between_requests_is_replaced(worker):
    before = worker.ask("pid", 30)
    os.kill(before, signal.SIGKILL)
    try:
        answer = worker.ask("pid", 30)
    except RequestFailed as failure:
        assert failure.reason == "crashed"
        answer = worker.ask("pid", 30)
    assert answer != before


def test_a_factory_that_fails_says_why():
    with Worker(FACTORY, "refuse") as worker, pytest.raises(RequestFailed, match="nothing to measure with"):
        worker.ask("pid", 30)


def test_no_process_stays_behind():
    with Worker(FACTORY) as worker:
        pid = worker.ask("pid", 30)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_worker_killed_by_another_thread_fails_its_request_and_no_more(worker):
    before = worker.ask("pid", 30)
    threading.Timer(0.2, worker.kill).start()
    with pytest.raises(RequestFailed, match="crashed"):
        worker.ask("hang", 30)
    assert worker.ask("pid", 30) != before
