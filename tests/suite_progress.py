"""A pytest plugin for a long suite: what passed is kept, a run can be cut short and taken up again.

    --resume        leave out the tests that passed before on this very tree and machine
    --seconds S     start no further test after this time; the exit status is then 2

What passed is written down test by test in pytest's cache, so that a run that was killed loses nothing. Ends with a
table by file, also where `timeout` or a scheduler asks it to end. With xdist the controller keeps the list and hands it
to the workers: all must collect the same tests.
"""

from __future__ import annotations

import hashlib
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("flashgen", "templates", "variants", "examples", "tests")
LATE = "not started: the time is up"
OUTCOMES = ("passed", "before", "failed", "skipped", "left")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("progress")
    group.addoption("--resume", action="store_true", help="leave out what passed before on this very tree and machine")
    group.addoption("--seconds", type=float, metavar="S", help="start no further test after this time")


def pytest_configure(config: pytest.Config) -> None:
    # Where pytest was asked for a folder above, a worker finds this plugin, its controller does not: then do nothing.
    if "progress_stop" in getattr(config, "workerinput", {"progress_stop": None}):
        progress = Progress(config)
        config.pluginmanager.register(progress, "progress")
        if not progress.is_worker and threading.current_thread() is threading.main_thread():
            # As on Ctrl-C, pytest then says what failed so far.
            signal.signal(signal.SIGTERM, signal.default_int_handler)


class Progress:
    """What one run of the suite does; in a worker of xdist, what its controller told it."""

    def __init__(self, config: pytest.Config) -> None:
        told = getattr(config, "workerinput", None)
        self.is_worker = told is not None
        self.counts: dict[str, Counter[str]] = {}
        self.seconds: Counter[str] = Counter()
        self.called: set[str] = set()
        if told is None:
            limit = config.getoption("--seconds", None)
            self.stop = None if limit is None else time.time() + limit
            resume = config.getoption("--resume", False)
            cache = getattr(config, "cache", None)
            if resume and cache is None:
                raise pytest.UsageError("--resume needs pytest's cache; expected no '-p no:cacheprovider' beside it")
            self.file = cache.mkdir("progress") / f"{fingerprint()}.txt" if cache else None
            self.passed = self.passed_before() if resume else set()
        else:
            self.stop, self.passed = told["progress_stop"], set(told["progress_passed"])

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["progress_stop"], node.workerinput["progress_passed"] = self.stop, sorted(self.passed)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        done = [item for item in items if item.nodeid in self.passed]
        if done:
            config.hook.pytest_deselected(items=done)
            items[:] = [item for item in items if item.nodeid not in self.passed]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if self.stop is not None and time.time() > self.stop:
            pytest.skip(LATE)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.is_worker:
            return
        path = report.nodeid.split("::")[0]
        self.seconds[path] += report.duration
        counts = self.counts.setdefault(path, Counter())
        if not report.passed:
            late = report.skipped and LATE in str(report.longrepr)
            counts["left" if late else report.outcome] += 1
        elif report.when == "call":
            self.called.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid in self.called:
            counts["passed"] += 1
            self.write("passed", report.nodeid)
        if report.failed:
            self.write("failed", report.nodeid)

    def write(self, outcome: str, nodeid: str) -> None:
        if self.file is None:
            return
        with self.file.open("a") as file:
            file.write(f"{outcome} {nodeid}\n")

    def passed_before(self) -> set[str]:
        """The tests that passed when they last ran."""
        lines = self.file.read_text().splitlines() if self.file and self.file.exists() else []
        last = {nodeid: outcome for outcome, _, nodeid in (line.partition(" ") for line in lines)}
        return {nodeid for nodeid, outcome in last.items() if outcome == "passed"}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        left = sum(counts["left"] for counts in self.counts.values())
        if left and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.INTERRUPTED
        if self.passed and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for nodeid in self.passed:
            self.counts.setdefault(nodeid.split("::")[0], Counter())["before"] += 1
        terminalreporter.section("by file")
        for line in self.table():
            terminalreporter.line(line)

    def table(self) -> Iterator[str]:
        """A line for each file and one for all; seconds are summed over workers."""
        paths = sorted(self.counts)
        width = max((len(path) for path in paths), default=0)
        yield f"{'':{width}} {' '.join(f'{name:>8}' for name in OUTCOMES)} {'s':>8}"
        for path in paths:
            yield f"{path:{width}} {_cells(self.counts[path])} {self.seconds[path]:8.1f}"
        total: Counter[str] = sum(self.counts.values(), Counter())
        yield f"{'all':{width}} {_cells(total)} {sum(self.seconds.values()):8.1f}"


def _cells(counts: Counter[str]) -> str:
    return " ".join(f"{counts[name]:8d}" for name in OUTCOMES)


def fingerprint(root: Path = ROOT, folders: Sequence[str] = FOLDERS) -> str:
    """12 hex digits of all that a test's outcome may depend on: the tree's files, versions, and the GPU."""
    import torch
    import triton

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    found = hashlib.sha256(f"{torch.__version__} {triton.__version__} {gpu}".encode())
    for path in sorted(path for folder in folders for path in (root / folder).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(f"{path.relative_to(root)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()[:12]
