"""Killed at any moment, a build and a search leave no process and nothing half-written; `tests/kills.py` does many."""

import signal
import sys

import pytest
from kills import kill_once

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
    pytest.mark.slow,
]


@pytest.mark.parametrize(
    ("number", "name", "after"),
    [("KILL", "build", 3.0), ("INT", "build", 6.0), ("KILL", "search", 3.5), ("INT", "search", 3.0)],
)
def test_a_killed_run_leaves_nothing_behind(number, name, after):
    assert kill_once(name, after, signal.Signals[f"SIG{number}"]) == []
