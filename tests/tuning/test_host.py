"""A GPU's process ends when it is asked to, whoever waits for it."""

import threading
import time

import pytest

from flashgen.tuning.host import GpuWorker
from flashgen.tuning.worker import RequestFailed, Worker, runs


def test_what_waits_for_a_process_that_is_ended_starts_no_other_one():
    """As the inputs of the next problems do when a run is interrupted: each would take its whole time first."""
    bench = Worker("fake_bench:make")
    gpu = GpuWorker(bench)
    failed = []

    def ask():
        try:
            gpu.time("hang", None, 10.0, None)
        except RequestFailed as failure:
            failed.append(failure.reason)

    pid = bench.ask("pid", 30)
    begun = threading.Event()
    bench.ask = hanging(bench.ask, begun)
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    begun.wait(30)
    time.sleep(0.3)
    start = time.monotonic()
    gpu.close()
    for thread in threads:
        thread.join()
    assert time.monotonic() - start < 20
    assert sorted(failed) == ["closed", "closed", "crashed"] and bench.pid is None and not runs(pid)


def hanging(ask, begun):
    def asked(request, seconds):
        begun.set()
        return ask("hang", seconds)

    return asked


def test_a_process_that_has_been_ended_is_not_asked():
    gpu = GpuWorker(Worker("fake_bench:make"))
    gpu.close()
    with pytest.raises(RequestFailed, match="ended"):
        gpu.work(None)
