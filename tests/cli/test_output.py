"""What commands print, and how they fail."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from flashgen.cli.failure import for_each, guarded
from flashgen.cli.output import Output, plain_table, to_json
from flashgen.errors import UsageError, VerificationFailed, add_note


@dataclass(frozen=True)
class Point:
    path: Path
    value: float


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_machine_output_keeps_text_off_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output.choose(machine=True)
    output.line("for people")
    output.document(Point(Path("a/b"), math.inf))
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"path": "a/b", "value": None}
    assert printed.err == "for people\n"


def test_without_json_no_document_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    Output.choose(machine=False).document({"a": 1})
    assert capsys.readouterr().out == ""


def test_a_pipe_gets_long_lines_whole_and_brackets_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    text = "doc[b, q] [bold] :smile: " + "x" * 500
    output = Output.choose(machine=False)
    output.line(text, style="red")
    output.table(["name"], [[text]])
    assert capsys.readouterr().out == f"{text}\nname\n{text}\n"


def test_a_pipe_gets_every_step_of_progress_as_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Output.choose(machine=False).progress() as progress:
        progress("first")
        progress("1 of 2", passing=True)
        progress("second")
    assert capsys.readouterr().out == "first\nsecond\n"


def test_a_terminal_gets_a_table_with_every_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    Output.choose(machine=False).table(["name", "ms"], [["[a]", 1.5], ["b", None]])
    printed = terminal.getvalue()
    for cell in ("name", "ms", "[a]", "1.5", "b", "-"):
        assert cell in printed


def test_plain_table_aligns_columns() -> None:
    assert plain_table([["a", "bb"], ["ccc", ""]]) == ["a    bb", "ccc"]


def test_to_json_reaches_into_collections() -> None:
    assert to_json({"points": (Point(Path("x"), math.nan),), 3: {1}}) == {
        "points": [{"path": "x", "value": None}],
        "3": [1],
    }


def failing(error: BaseException) -> Callable[[], None]:
    @guarded
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(("error", "code"), [(UsageError("wrong"), 2), (VerificationFailed("failed"), 1)])
def test_an_error_of_the_catalogue_is_one_line_and_its_exit_code(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as left:
        failing(error)()
    assert left.value.exit_code == code
    assert capsys.readouterr().err == f"error: {error}\n"


def test_an_interrupt_exits_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    @guarded
    def command() -> None:
        raise KeyboardInterrupt

    with pytest.raises(typer.Exit) as left:
        command()
    assert left.value.exit_code == 130
    assert capsys.readouterr().err == "interrupted\n"


def noted(error: BaseException) -> BaseException:
    add_note(error, "and \x1b was there")
    return error


@pytest.mark.parametrize(
    ("error", "said"), [(UsageError("wrong"), "error: wrong"), (KeyboardInterrupt(), "interrupted")]
)
def test_what_was_noted_of_an_error_is_said_below_it(
    error: BaseException, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit):
        failing(noted(error))()
    assert capsys.readouterr().err == f"{said}\nand \\x1b was there\n"


def test_another_error_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        failing(ZeroDivisionError())()


def test_for_each_goes_on_after_a_failure_and_exits_with_the_worst_code(capsys: pytest.CaptureFixture[str]) -> None:
    seen = []
    errors = {"b": UsageError("b is wrong"), "c": VerificationFailed("c failed")}

    def action(item: str) -> None:
        seen.append(item)
        if item in errors:
            raise errors[item]

    with pytest.raises(typer.Exit) as left:
        for_each("abcd", action)
    assert seen == list("abcd")
    assert left.value.exit_code == 2
    assert capsys.readouterr().err == "error: b is wrong\nerror: c failed\n"


@pytest.mark.parametrize(
    ("value", "is_on"), [("1", True), ("true", True), (" On", True), ("0", False), ("false", False), ("", False)]
)
@pytest.mark.parametrize(
    ("error", "said"), [(UsageError("wrong"), "wrong"), (OSError(errno.EACCES, "denied", "a/b"), "a/b: denied")]
)
def test_debug_adds_the_traceback_where_it_is_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str, is_on: bool, error: Exception,
    said: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("FLASHGEN_DEBUG", value)
    with pytest.raises(typer.Exit):
        failing(error)()
    printed = capsys.readouterr().err
    assert ("Traceback" in printed) == is_on
    assert printed.endswith(f"error: {said}\n")


def test_what_the_system_refuses_is_no_lost_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(typer.Exit) as left:
        guarded(os.getcwd)()
    assert left.value.exit_code == 2
    assert capsys.readouterr().err == "error: the working folder: No such file or directory\n"
