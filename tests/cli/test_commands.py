"""The commands, called as a user calls them, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import RENDER_ONLY, Run, needs_no_gpu, passed_report

import flashgen.compiling
import flashgen.verify

COMMANDS = ("build", "verify", "tune", "bench", "explain", "export", "convert", "list", "cache", "schema", "doctor")


def test_help_names_every_command(run: Run) -> None:
    ended = run("--help")
    assert ended.code == 0
    assert all(f"\n  {command} " in ended.out for command in COMMANDS)
    assert run("-h").out == ended.out
    assert run("build", "-h").out == run("build", "--help").out


@pytest.mark.parametrize("arguments", [("nope",), ("build",), ("build", "--nope"), ("cache", "nope")])
def test_a_wrong_command_line_exits_with_2(run: Run, arguments: tuple[str, ...]) -> None:
    ended = run(*arguments)
    assert ended.code == 2
    assert ended.err.startswith("Usage: flashgen")


def test_version_is_that_of_the_package(run: Run) -> None:
    assert run("--version").out == f"{flashgen.__version__}\n"


@needs_no_gpu
@pytest.mark.parametrize("mode", ["dense", "varlen", "decode", "paged"])
@pytest.mark.parametrize("command", ["tune", "bench"])
def test_what_needs_a_gpu_says_so(run: Run, command: str, mode: str) -> None:
    ended = run(command, "band", "--mode", mode)
    assert ended.code == 2
    assert ended.err.startswith("error: ")
    assert "no GPU" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench", "band", "--resume"), "--resume was given without --rows"),
        (("bench", "band", "--mode", "dense", "--mode", "varlen"), "--mode dense was given with --mode varlen"),
        (("bench", "band", "--mode", "varlen", "--mode", "paged"), "paged was given with --mode dense or varlen"),
        (("bench", "band", "--mode", "varlen", "--candidate", "eager"), "no candidate 'eager'; expected one of 'flash"),
        (("tune", "band", "--shape", "batch=1"), "heads, q_len not found"),
        (("tune", "band", "--dtype", "int8"), "--dtype 'int8'"),
        (("verify", "band", "--level", "medium"), "--level 'medium'; expected one of"),
        (("build", "band", "--out", ""), "Invalid value for '--out': ''; expected a path"),
        (("export", "band", "-o", ""), "'--output': ''; expected a path"),
        (("tune", "band", "--table", ""), "'--table': ''; expected a path"),
        (("cache", "clear"), "expected --variant, --gpu or --all"),
        (("cache", "clear", "--all", "--variant", "band"), "--all with --variant or --gpu; expected one or the other"),
    ],
)
def test_wrong_values_are_one_line_and_exit_2(run: Run, arguments: tuple[str, ...], message: str) -> None:
    ended = run(*arguments)
    assert ended.code == 2
    assert message in ended.err.splitlines()[-1]


DOUBT = "'&' binds tighter than the comparisons beside it: this is 'k <= (q & k) > q - 5'; where tests are meant write"


@pytest.mark.parametrize("command", [("build", *RENDER_ONLY), ("verify",), ("explain", "--length", "16")])
def test_what_may_not_be_meant_is_said(run: Run, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("doubtful.yaml").write_text("name: doubtful\nmask: k <= q & k > q - 5\n")
    monkeypatch.setattr(flashgen.verify, "verify", passed_report)
    ended = run(*command, "doubtful.yaml", "--json")
    assert ended.code == 0
    assert ended.err.startswith(f"warning: doubtful.yaml:2:14: {DOUBT}")
    (document,) = ended.documents
    assert [text.startswith(f"doubtful.yaml:2:14: {DOUBT}") for text in document["warnings"]] == [True]
    assert run(*command, "doubtful.yaml").err.startswith("warning: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cache", "explain", "band", "--gpu", "X", "--capability", "9.0"), "--capability '9.0'; expected a target"),
        (("explain", "band", "--dark"), "--dark was given without --png"),
        (("explain", "band", "--png", "mask.jpg"), "mask.jpg does not end in .png"),
        (("bench", "band", "--png", "speeds"), "speeds does not end in .png"),
    ],
)
def test_what_would_be_without_effect_is_refused(run: Run, arguments: tuple[str, ...], message: str) -> None:
    ended = run(*arguments)
    assert ended.code == 2
    assert ended.err.startswith(f"error: {message}")


def test_schema_is_json_schema(run: Run) -> None:
    assert json.loads(run("schema").out)["$schema"].startswith("https://json-schema.org/")


def test_schema_for_machines_is_one_line(run: Run) -> None:
    assert run("schema", "--json").documents == [json.loads(run("schema").out)]
