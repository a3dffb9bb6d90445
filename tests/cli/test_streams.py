"""Standard output as it may be: closed, full, read no more, ASCII. None gives a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from flashgen.cli import streams
from flashgen.runtime.record_files import RecordWarning

SPEC = 'name: band\ndescription: "café – 漢字"\ndtype: float32\nhead_dim: 16\nmask: q - k < 100\n'
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0"}
# What --json moves to standard error.
TABLE = "name  description  module  tuned for\nband  café – 漢字    -       -\n"
COMMANDS = {
    "schema": ["schema"],
    "help": ["--help"],
    "version": ["--version"],
    "list": ["list"],
    "json": ["list", "--json"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "variants").mkdir()
    (tmp_path / "variants" / "band.yaml").write_text(SPEC, encoding="utf-8")
    return tmp_path


def run(folder: Path, redirection: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = f"exec {sys.executable} -m flashgen {' '.join(arguments)} {redirection}"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment}
    return subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


CLOSED = (">&-", "error: standard output: Bad file descriptor\n")
FULL = ("> /dev/full", "error: standard output: No space left on device\n")


@pytest.mark.parametrize(
    ("command", "lost"),
    [("schema", CLOSED), ("schema", FULL), ("help", CLOSED), ("version", FULL), ("list", CLOSED), ("json", FULL)],
)
def test_output_that_is_lost_is_said_and_the_exit_code(folder: Path, command: str, lost: tuple[str, str]) -> None:
    redirection, message = lost
    ended = run(folder, redirection, *COMMANDS[command])
    assert (ended.returncode, ended.stdout, ended.stderr) == (
        1,
        "",
        message if command != "json" else f"{TABLE}{message}",
    )


@pytest.mark.parametrize("command", ["schema", "list"])
def test_a_pipe_that_nobody_reads_ends_quietly(folder: Path, command: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run(
        [sys.executable, "-m", "flashgen", command],
        cwd=folder, env=environment, stdout=writing, stderr=subprocess.PIPE,
        check=False,
    )  # fmt: skip
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, b"")


@pytest.mark.parametrize("redirection", ["2>&-", "2> /dev/full", ">&- 2>&-", "<&- 2>&-"])
def test_a_message_that_is_lost_is_no_traceback(folder: Path, redirection: str) -> None:
    ended = run(folder, redirection, "explain", "nope.yaml")
    assert ended.returncode in (1, 2)
    assert (ended.stdout, ended.stderr) == ("", "")


def test_an_ascii_terminal_gets_escapes_and_json_stays_json(folder: Path) -> None:
    shown = run(folder, "", "list", **ASCII)
    assert shown.returncode == 0
    assert r"caf\xe9 \u2013 \u6f22\u5b57" in shown.stdout
    document = run(folder, "", "list", "--json", **ASCII)
    assert json.loads(document.stdout)["description"] == "café – 漢字"


def test_a_module_is_utf8_whatever_the_locale(folder: Path) -> None:
    ended = run(folder, "", "build", "band", "--no-verify", "--no-tune", "--no-compile", **ASCII)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "café – 漢字" in (folder / "generated" / "band" / "__init__.py").read_text(encoding="utf-8")


def test_a_warning_is_a_line_without_the_place_in_our_code(folder: Path) -> None:
    records = folder / "cache" / "tuned" / "band" / "gpu.json"
    records.parent.mkdir(parents=True)
    records.write_text("{")
    shown = run(folder, "", "list", FLASHGEN_CACHE_DIR=str(folder / "cache"))
    assert (shown.returncode, shown.stdout) == (0, TABLE)
    assert shown.stderr.startswith("warning: ") and str(records) in shown.stderr
    assert shown.stderr.count("\n") == 1


def test_a_warning_of_another_package_stays_what_it_is() -> None:
    with streams.plain_warnings():
        others = warnings.formatwarning(UserWarning("other"), UserWarning, "file.py", 3, "x = 1")
        ours = warnings.formatwarning(RecordWarning("one\x1b"), RecordWarning, "file.py", 3, "x = 1")
    assert others == "file.py:3: UserWarning: other\n  x = 1\n"
    assert ours == "warning: one\\x1b\n"
