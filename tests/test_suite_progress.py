"""The GPU suite's own tools, with a suite of a few tests: resuming, the time limit, the table, which GPU is whose."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_share import take_gpu
from suite_progress import fingerprint

SUITE = """
import os
import signal
import time
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range(4))
def test_one(number, request):
    Path(os.environ["RAN"]).open("a").write(f"{number}\\n")
    assert number != 2 or os.environ.get("RIGHT")
    if os.environ.get("STOP") == str(number):
        request.config.pluginmanager.get_plugin("progress").stop = 0
    if os.environ.get("TERMINATED") == str(number):
        os.kill(os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid(), signal.SIGTERM)
        time.sleep(60)

@pytest.fixture
def _fails_at_its_end():
    yield
    assert os.environ.get("RIGHT")

def test_end(_fails_at_its_end):
    pass

def test_skipped():
    pytest.skip("not here")
"""


PLUGIN = "from suite_progress import pytest_addoption, pytest_configure\n"
# The name of a tree takes an import of torch in each process, so most suites here have a given one.
NAMED = "import suite_progress\n\nsuite_progress.fingerprint = lambda: 'tree'\n"


def suite(folder: Path, conftest: str = PLUGIN + NAMED) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_some.py").write_text(SUITE)
    return folder


def run(folder: Path, *arguments: str, **environment: str) -> tuple[int, list[str], str]:
    """Exit status, the numbers of the tests that ran, and the table."""
    ran = folder / "ran"
    ran.write_text("")
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # Of other plugins than these, hypothesis takes as long to start as all the rest.
    own = {"PYTHONPATH": paths, "RAN": str(ran), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "--rootdir", ".", ".", *arguments],
        env={**inherited, **own, **environment},
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, sorted(ran.read_text().split()), done.stdout.partition("by file")[2] or done.stdout


def counts(table: str, name: str = "all") -> dict[str, int]:
    names = next(line.split() for line in table.splitlines() if line.split()[:1] == ["passed"])
    values = next(line.split() for line in table.splitlines() if line.split()[:1] == [name])
    return {name: int(value) for name, value in zip(names[:-1], values[1:-1], strict=True) if int(value)}


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_resumed_run_leaves_out_what_passed_and_nothing_else(tmp_path: Path, workers: str) -> None:
    status, ran, table = run(suite(tmp_path), "-n", workers)
    assert (status, ran) == (1, list("0123"))
    assert counts(table) == counts(table, "test_some.py") == {"passed": 3, "failed": 2, "skipped": 1}
    status, ran, table = run(tmp_path, "-n", workers, "--resume", RIGHT="1")
    assert (status, ran) == (0, ["2"])
    assert counts(table) == {"before": 3, "passed": 2, "skipped": 1}
    # What is skipped has not passed; where all has, there is nothing to do.
    assert run(tmp_path, "-n", workers, "--resume", "-k", "not skipped")[:2] == (0, [])


def test_a_run_that_is_cut_short_says_so_and_is_taken_up_again(tmp_path: Path) -> None:
    only = ("-n", "0", "-k", "test_one")
    status, ran, table = run(suite(tmp_path, PLUGIN), *only, "--seconds", "600", RIGHT="1", STOP="1")
    assert (status, ran) == (pytest.ExitCode.INTERRUPTED, ["0", "1"])
    assert counts(table) == {"passed": 2, "left": 2}
    status, ran, table = run(tmp_path, *only, "--resume", RIGHT="1")
    assert (status, ran) == (0, ["2", "3"])
    assert counts(table) == {"before": 2, "passed": 2}
    # Without --resume all run, and what fails then has not passed.
    suite(tmp_path)
    assert run(tmp_path, *only)[1] == list("0123")
    assert run(tmp_path, *only, "--resume", RIGHT="1")[1] == ["2"]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_that_is_asked_to_end_still_says_what_passed(tmp_path: Path, workers: str) -> None:
    only = ("-n", workers, "-k", "test_one")
    status, ran, table = run(suite(tmp_path), *only, RIGHT="1", TERMINATED="3")
    assert status == pytest.ExitCode.INTERRUPTED and "3" in ran
    passed = counts(table).get("passed", 0)
    assert passed == 3 if workers == "0" else passed <= 3
    status, _, table = run(tmp_path, *only, "--resume", RIGHT="1")
    assert (status, counts(table)["passed"]) == (0, 4 - passed)


def test_workers_keep_to_the_time_limit(tmp_path: Path) -> None:
    status, ran, table = run(suite(tmp_path), "-n", "2", "--seconds", "0", RIGHT="1")
    assert (status, ran) == (pytest.ExitCode.INTERRUPTED, [])
    assert counts(table) == {"left": 6}


@pytest.mark.parametrize("workers", ["0", "2"])
def test_from_a_folder_above_the_suite_runs_as_any_other(tmp_path: Path, workers: str) -> None:
    suite(tmp_path / "above" / "below")
    status, ran, _ = run(tmp_path, "-n", workers, "-k", "test_one", RIGHT="1")
    assert (status, ran) == (0, list("0123"))


def test_a_changed_file_is_another_tree(tmp_path: Path) -> None:
    (tmp_path / "tests/__pycache__").mkdir(parents=True)
    first = fingerprint(tmp_path)
    assert re.fullmatch("[0-9a-f]{12}", first)
    (tmp_path / "tests/__pycache__/a.pyc").write_text("b")
    assert fingerprint(tmp_path) == first
    (tmp_path / "tests/a.py").write_text("")
    second = fingerprint(tmp_path)
    (tmp_path / "tests/a.py").write_text("b")
    assert len({first, second, fingerprint(tmp_path)}) == 3


@pytest.mark.parametrize(
    ("worker", "visible", "gpus", "expected"),
    [
        ("gw0", None, 4, "0,1,2,3"),
        ("gw3", None, 4, "3,0,1,2"),
        ("gw6", None, 4, "2,3,0,1"),
        ("gw1", "5,7", 8, "7,5"),
        ("gw1", "5", 8, "5"),
        ("gw1", None, 1, None),
        ("gw1", None, 0, None),
        ("master", None, 4, None),
        (None, None, 4, None),
    ],
)
def test_workers_share_the_gpus_and_each_sees_all(
    worker: str | None, visible: str | None, gpus: int, expected: str | None
) -> None:
    environment = {"PYTEST_XDIST_WORKER": worker} if worker else {}
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    take_gpu(environment, gpus)
    assert environment.get("CUDA_VISIBLE_DEVICES") == expected


def test_without_a_cache_there_is_a_table_and_nothing_to_resume(tmp_path: Path) -> None:
    status, ran, table = run(suite(tmp_path), "-p", "no:cacheprovider")
    assert (status, ran) == (1, list("0123"))
    assert counts(table) == {"passed": 3, "failed": 2, "skipped": 1}
    status, ran, _ = run(tmp_path, "-p", "no:cacheprovider", "--resume")
    assert (status, ran) == (pytest.ExitCode.USAGE_ERROR, [])
