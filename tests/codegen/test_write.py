"""Files on disk: whole or not at all, touched only when they change, imported as they are now."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flashgen.codegen import generate, load_module, render
from flashgen.errors import EnvironmentProblem, UsageError
from flashgen.files import write_if_changed
from flashgen.spec import load

CAUSAL = load({"name": "mine", "causal": True})
WINDOW = load({"name": "mine", "window": {"left": 5, "right": 0}})


def test_a_module_is_written_under_its_name_in_a_new_folder(tmp_path: Path) -> None:
    path = generate(CAUSAL, tmp_path / "a" / "b")
    assert path == tmp_path / "a" / "b" / "mine.py"
    assert path.read_text() == render(CAUSAL)
    assert path.stat().st_mode & 0o777 == 0o644


def test_an_unchanged_file_is_not_touched(tmp_path: Path) -> None:
    path = generate(CAUSAL, tmp_path)
    before = path.stat()
    assert generate(CAUSAL, tmp_path) == path
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_changed_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    generate(CAUSAL, tmp_path)
    path = generate(WINDOW, tmp_path)
    assert path.read_text() == render(WINDOW)
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine.py"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_is_an_environment_problem(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(EnvironmentProblem, match=r"mine\.py cannot be written: Permission denied$"):
            generate(CAUSAL, tmp_path)
    finally:
        tmp_path.chmod(0o755)


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(EnvironmentProblem, match=r"out/mine\.py cannot be written: (Not a directory|File exists)$"):
        generate(CAUSAL, tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("step", ["replace", "fdopen", "chmod"])
@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.EACCES])
def test_a_failure_on_the_way_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, problem: int
) -> None:
    path = generate(CAUSAL, tmp_path)

    def fails(*_: object, **__: object) -> None:
        raise OSError(problem, os.strerror(problem))

    monkeypatch.setattr(os, step, fails)
    with pytest.raises(EnvironmentProblem, match=f"cannot be written: {os.strerror(problem)}$"):
        generate(WINDOW, tmp_path)
    monkeypatch.undo()
    assert path.read_text() == render(CAUSAL)
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine.py"]


WRITES_FOREVER = """
import sys
from itertools import cycle
from pathlib import Path
from flashgen.files import write_if_changed
for letter in cycle("ab"):
    write_if_changed(Path(sys.argv[1]), letter * 3_000_000)
"""


def test_a_process_killed_while_it_writes_leaves_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "big.py"
    for attempt in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITES_FOREVER, str(path)])
        while not path.exists() and writer.poll() is None:
            time.sleep(0.005)
        time.sleep(0.003 * (attempt + 1))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        text = path.read_text()
        assert text in ("a" * 3_000_000, "b" * 3_000_000)
        path.unlink()


def test_a_module_is_imported_as_it_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "mine.py"
    for number in range(5):
        write_if_changed(path, f"ANSWER = {number}\n")
        # The same second and the same length: bytecode of the earlier text would pass for this one's.
        module = load_module(path)
        assert int(module.ANSWER) == number


def test_modules_imported_apart_stay_apart(tmp_path: Path) -> None:
    first = load_module(generate(CAUSAL, tmp_path / "one"))
    second = load_module(generate(WINDOW, tmp_path / "two"))
    assert first.__name__ == second.__name__ == "flashgen_generated.mine"
    assert first.IDENTITY.spec != second.IDENTITY.spec


def test_what_is_no_module_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^no generated module at .*none\.py; expected one made by `flashgen build`$"):
        load_module(tmp_path / "none.py")
    (tmp_path / "text.txt").write_text("")
    with pytest.raises(UsageError, match=r"^no generated module at .*text\.txt"):
        load_module(tmp_path / "text.txt")
