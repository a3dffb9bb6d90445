"""Killed at any moment, a build and a search leave no process and nothing half-written; `tests/kills.py` does many."""

import signal
import sys

import pytest
from kills import kill_once

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
    pytest.mark.slow,
]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill", "ctrl-c"])
@pytest.mark.parametrize(("name", "after"), [("build", 3.0), ("build", 7.0), ("search", 3.5)])
def test_a_killed_run_leaves_nothing_behind(name, after, number):
    assert kill_once(name, after, number) == []
