"""Files that a user names: whole, beside before they replace, and never in the place of what is no file or a spec."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flashgen.errors import EnvironmentProblem, UsageError
from flashgen.files import append_lines, append_to, check_folder, check_target, write_file, write_if_changed

WRITERS: dict[str, Callable[[Path, str], None]] = {
    "write": write_file,
    "write if changed": write_if_changed,
    "append": append_to,
    "append lines": lambda path, text: append_lines(path, [text]),
    "check": lambda path, text: check_target(path),
}


def a_link(path: Path) -> None:
    path.with_name("target").write_text("text")
    path.symlink_to("target")


def a_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


PLACES: dict[str, Callable[[Path], object]] = {
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a symbolic link": a_link,
    "a socket": a_socket,
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("what", PLACES)
def test_what_is_no_file_is_refused_and_stays(writer: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "it"
    PLACES[what](path)
    before = os.lstat(path)
    with pytest.raises(UsageError) as caught:
        WRITERS[writer](path, "text")
    assert str(caught.value) == f"{path} is {what}; expected the path of a file, there or not"
    after = os.lstat(path)
    assert (after.st_ino, after.st_mode, after.st_size) == (before.st_ino, before.st_mode, before.st_size)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("device", ["/dev/null", "/dev/full", "/dev/zero"])
def test_a_device_is_refused(writer: str, device: str) -> None:
    with pytest.raises(UsageError, match=f"^{device} is a device; expected the path of a file, there or not$"):
        WRITERS[writer](Path(device), "text")


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("name", ["mine.yaml", "mine.yml", "MINE.YAML", "mine", "mine.py"])
def test_a_spec_is_never_written_over_whatever_its_name(writer: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("name: mine\ncausal: true\n")
    with pytest.raises(UsageError, match="is a spec's; expected the path of another file"):
        WRITERS[writer](path, "text")
    assert path.read_text() == "name: mine\ncausal: true\n"


def test_a_file_gets_the_new_text_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "it.py"
    write_file(path, "é")
    write_file(path, b"\xff")
    assert path.read_bytes() == b"\xff"
    append_to(path, "é\n")
    assert path.read_bytes() == b"\xff\xc3\xa9\n"
    assert [entry.name for entry in path.parent.iterdir()] == ["it.py"]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("writer", [write_file, append_to])
@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "file/below"])
def test_a_path_that_cannot_be_is_a_message(writer: Callable[[Path, str], None], name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match="cannot be written") as error:
        writer(tmp_path / name, "text")
    assert name != "file/below" or str(error.value).endswith(f": {tmp_path / 'file'} is no folder")


def test_a_folder_may_be_there_or_not_but_be_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check_folder(tmp_path / "not" / "there")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="is no folder; expected the path of one, there or not"):
            check_folder(path)


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


def test_a_folder_that_cannot_be_reached_is_a_problem_of_the_environment(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="cannot be reached: File name too long"):
        check_folder(tmp_path / ("a" * 300))
