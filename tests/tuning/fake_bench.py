"""Stands in for a GPU in a worker process: answers, fails, crashes and hangs as the request says."""

import os
import signal
import time
from pathlib import Path

from flashgen.tuning.timing import Timing
from flashgen.tuning.worker import RequestFailed


def median_us(config):
    """A landscape with one best config: BM 128, BN 64, 8 warps, 3 stages."""
    steps = abs(config.BM.bit_length() - 8) + abs(config.BN.bit_length() - 7) + 2 * (config.num_warps != 8)
    return 100.0 * (1 + 0.1 * steps + 0.04 * abs(config.num_stages - 3))


def make(greeting="hello"):
    if greeting == "refuse":
        raise OSError("nothing to measure with")

    def answer(request):
        if request == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if request == "hang":
            time.sleep(60)
        if request == "refuse":
            raise RequestFailed("out of resources", "too much shared memory")
        if request == "break":
            raise ZeroDivisionError("by design")
        if request == "pid":
            return os.getpid()
        if request == "greeting":
            return greeting
        return Timing(median_us(request), 0.01, 10)

    return answer


class Prepared:
    """Answers with the process that prepared it; one whose name is "broken" cannot be, one with a path marks it."""

    def __init__(self, name):
        self.name, self.by = name, None

    def prepare(self):
        if self.name == "broken":
            raise OSError("nothing to prepare")
        self.by = os.getpid()
        if os.sep in self.name:
            Path(self.name).touch()

    def __call__(self, request):
        return self.by
