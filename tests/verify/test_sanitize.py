"""The sanitizer's command with a stand-in for the tool: what it finds, and that it never hides a failure."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from flashgen.codegen import generate
from flashgen.errors import EnvironmentProblem
from flashgen.problems import Problem
from flashgen.runtime import Config
from flashgen.spec import load
from flashgen.verify import sanitize
from flashgen.verify.exercise import configs, exercise
from flashgen.verify.sanitize import Job, find_sanitizer, judge, main, show

CLEAN = "kernels: _forward _delta\n========= ERROR SUMMARY: 0 errors\n"
FOUND = """========= Invalid __global__ write of size 4 bytes
=========     at _forward+0x50
kernels: _forward
========= ERROR SUMMARY: 2 errors
"""
RACES = "kernels: _forward\n========= RACECHECK SUMMARY: {} hazards displayed ({} errors, 0 warnings)\n"


@pytest.mark.parametrize(
    ("log", "status", "tool", "clean", "found"),
    [
        (CLEAN, 0, "memcheck", True, "ERROR SUMMARY: 0 errors"),
        (FOUND, 0, "memcheck", False, "ERROR SUMMARY: 2 errors"),
        (CLEAN, 3, "memcheck", False, "ERROR SUMMARY: 0 errors"),
        (RACES.format(0, 0), 0, "racecheck", True, "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"),
        (RACES.format(10, 4), 0, "racecheck", False, "RACECHECK SUMMARY: 10 hazards displayed (4 errors, 0 warnings)"),
        ("kernels: _forward\n", 0, "", True, "_forward"),
        # Without a summary nothing was checked, without kernels nothing ran.
        ("kernels: _forward\n", 0, "memcheck", False, "status 0: kernels: _forward"),
        ("========= ERROR SUMMARY: 0 errors\n", 0, "memcheck", False, "status 0: ERROR SUMMARY: 0 errors"),
        (
            "========= Error: Device not supported\nmore\n",
            1,
            "racecheck",
            False,
            "status 1: Error: Device not supported",
        ),
        ("Traceback:\nValueError: no\n", 1, "", False, "status 1: ValueError: no"),
        ("", -9, "memcheck", False, "status -9: no output"),
    ],
)
def test_a_run_is_clean_only_where_the_tool_counted_nothing(
    log: str, status: int, tool: str, clean: bool, found: str
) -> None:
    assert judge(log, status, tool, "") == (clean, found)


HANDED_OVER = """========= Error: Race reported between Write access at _forward_hopper+0xb090 in causal.py:{}
=========     and Read access at _forward_hopper+0x410 in causal.py:{} [4 hazards]
=========     and Read access at _forward_hopper+0xbf00 in causal.py:{} [4 hazards]
=========
"""


def test_races_are_findings_unless_mbarriers_order_all_their_accesses(repository: Path) -> None:
    source = (repository / "generated/causal.py").read_text()
    lines = source.splitlines()

    def line(text: str) -> int:
        return next(number for number, line in enumerate(lines, 1) if text in line)

    announced = HANDED_OVER.format(line("index_s.index(turn % 2).store"), *[line("index_s.index(turn % 2).load")] * 2)
    started = HANDED_OVER.format(*[line("gl.warp_specialize([")] * 2, line("def _forward_hopper") - 1)
    other = HANDED_OVER.format(line("def _forward_hopper"), line("def _forward_hopper"), line("out_tile.slice"))
    clean, found = judge(announced + started + RACES.format(2, 2), 0, "racecheck", source)
    assert clean and "2 hazards displayed" in found and "hand over" in found
    assert not judge(announced + other + RACES.format(2, 2), 0, "racecheck", source)[0]
    # More than the log has lines for.
    assert not judge(announced + RACES.format(2, 2), 0, "racecheck", source)[0]
    assert not judge(announced + RACES.format(1, 1), 1, "racecheck", source)[0]


def stand_in(folder: Path, body: str) -> str:
    path = folder / sanitize.NAME
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_the_tool_is_looked_for_on_the_path_and_in_the_usual_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    monkeypatch.setattr(sanitize, "PLACES", (str(tmp_path / "cuda*/bin"),))
    with pytest.raises(EnvironmentProblem, match=r"compute-sanitizer is neither on PATH nor in .*; expected"):
        find_sanitizer()
    assert main([]) == 2
    (tmp_path / "cuda-13/bin").mkdir(parents=True)
    in_toolkit, on_path = stand_in(tmp_path / "cuda-13/bin", ""), stand_in(tmp_path, "")
    assert find_sanitizer() == in_toolkit
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_sanitizer() == on_path


@pytest.fixture
def job(tmp_path: Path, repository: Path) -> Job:
    spec = repository / "variants/causal.yaml"
    return Job(spec, generate(load(spec), tmp_path), "portable")


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="the interpreter is off because there is a GPU")
def test_the_kernels_run_with_and_without_the_tool(
    tmp_path: Path, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = stand_in(tmp_path, 'echo "tool $2"; shift 2; "$@"; echo "========= ERROR SUMMARY: 0 errors"')
    outcomes = list(sanitize.sanitize(tool, [job], ["memcheck", "synccheck"], 120, 1, tmp_path / "logs"))
    assert [each.tool for each in outcomes] == ["", "memcheck", "synccheck"]
    assert all(each.clean for each in outcomes), outcomes
    assert (tmp_path / "logs/causal-portable-synccheck.log").read_text().startswith("tool synccheck")
    assert show(iter(outcomes)) == 0
    assert capsys.readouterr().out.count("clean") == 3


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split(")")[1].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_run_that_does_not_end_is_killed_with_its_child(tmp_path: Path, job: Job) -> None:
    tool = stand_in(tmp_path, f"sleep 60 & echo $! > {tmp_path}/child; wait")
    outcome = sanitize.run(job, "memcheck", [tool], 1.0, tmp_path)
    assert not outcome.clean and outcome.found == "not done within 1 s" and outcome.seconds < 30
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 30
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_alive(child)
    assert show(iter([outcome])) == 1


def test_what_fails_without_the_tool_is_not_run_under_it(tmp_path: Path, job: Job) -> None:
    broken = Job(job.spec, tmp_path / "none.py", "portable")
    tool = stand_in(tmp_path, "exit 0")
    (outcome,) = sanitize.sanitize(tool, [broken], ["memcheck"], 60, 1, tmp_path / "logs")
    assert not outcome.clean and "no generated module" in outcome.found


def test_the_configs_are_those_of_the_backend(repository: Path) -> None:
    for name in ("causal", "document"):
        variant = load(repository / f"variants/{name}.yaml")
        for backend in ("portable", "hopper"):
            for kernel, config in configs(variant, backend).items():
                assert config.for_kernel(kernel).backend == backend
    assert configs(load(repository / "variants/causal.yaml"), "portable")["forward"] == Config(64, 64, 4, 2)


def test_learned_inputs_and_schedules_take_part(gallery_module: Callable[[str], ModuleType], repository: Path) -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("the interpreter is off because there is a GPU")
    problem = Problem(1, 2, 1, 70, 90, 16, 16, "bfloat16")
    for name in ("relative_bias", "document"):
        exercise(load(repository / f"variants/{name}.yaml"), gallery_module(name), "portable", "cpu", problem)
