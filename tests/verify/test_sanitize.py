"""The sanitizer's command with a stand-in for the tool: what it finds, and that it never hides a failure."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from packages import change, files_of

from flashgen.codegen import generate
from flashgen.errors import EnvironmentProblem, UsageError
from flashgen.runtime import Config
from flashgen.runtime.registry import checked
from flashgen.spec import load
from flashgen.verify import sanitize
from flashgen.verify.exercise import parts
from flashgen.verify.sanitize import (
    Job,
    Outcome,
    Runs,
    by_kernel,
    find_sanitizer,
    jobs_of,
    kernels_of,
    main,
    read,
    show,
)
from flashgen.verify.sanitizer_log import judge

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
    assert judge(log, status, tool, {}) == (clean, found)


HANDED_OVER = """========= Error: Race reported between Write access at _forward_sm90+0xb090 in /tmp/causal/{}
=========     and Read access at _forward_sm90+0x410 in /tmp/causal/{} [4 hazards]
=========     and Read access at _forward_sm90+0xbf00 in /tmp/causal/{} [4 hazards]
=========
"""


def test_races_are_findings_unless_mbarriers_order_all_their_accesses(repository: Path) -> None:
    sources = files_of(repository / "generated/causal")
    device = repository / "flashgen/runtime/device/sm90"
    of_device = {path.name: path.read_text() for path in device.glob("*.py")}

    def line(text: str, offset: int = 0) -> str:
        return next(
            f"{file}:{number + offset}"
            for file, source in {**sources, **of_device}.items()
            for number, line in enumerate(source.splitlines(), 1)
            if text in line
        )

    announced = HANDED_OVER.format(line("number.store("), *[line("number.load(")] * 2)
    kernel = line("def _forward_sm90")
    inside = kernel.replace(kernel.rpartition(":")[2], str(int(kernel.rpartition(":")[2]) + 1))
    started = HANDED_OVER.format(inside, inside, line("def _forward_sm90", -1))
    left = HANDED_OVER.format(line("p_s.store("), *[line("p = p_s.load(")] * 2)
    other = HANDED_OVER.format(line("def _forward_sm90"), line("def _forward_sm90"), line("store_output(out_desc"))
    clean, found = judge(announced + started + left + RACES.format(3, 3), 0, "racecheck", sources)
    assert clean and "3 hazards displayed" in found and "hand over" in found
    clean, found = judge(announced + other + RACES.format(2, 2), 0, "racecheck", sources)
    assert not clean and found.endswith("; 1 in _forward_sm90 and _consumer"), found
    # A race of which the log does not say where.
    nowhere = "========= Error: Race reported between Write access at 0x7f and Read access at 0x80\n"
    assert not judge(nowhere + RACES.format(1, 1), 0, "racecheck", sources)[0]
    # More than the log has lines for.
    assert not judge(announced + RACES.format(2, 2), 0, "racecheck", sources)[0]
    assert not judge(announced + RACES.format(1, 1), 1, "racecheck", sources)[0]


def stand_in(folder: Path, body: str) -> str:
    path = folder / sanitize.NAME
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_wrong_commands_say_so_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.yaml").write_text("name: mine\n")
    assert main(["--rows", str(tmp_path / "spec.yaml")]) == 2
    assert "is a spec's" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["--jobs", "0"])


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


INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
WITH_TOOL = 'echo "tool $2"; shift 2; "$@"; echo "========= ERROR SUMMARY: 0 errors"'


def runs(folder: Path, tool: str, limit: float = 120.0, tools: tuple[str, ...] = ("memcheck", "synccheck")) -> Runs:
    return Runs(tool, tools, 2, limit, folder / "logs")


@pytest.mark.skipif(not INTERPRETED, reason="the interpreter is off because there is a GPU")
def test_the_kernels_run_with_and_without_the_tool(
    tmp_path: Path, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = list(runs(tmp_path, stand_in(tmp_path, WITH_TOOL), tools=("synccheck",)).of([job]))
    assert all(each is not None and each.clean for each in outcomes), outcomes
    assert sorted(each.tool for each in outcomes if each) == ["", "synccheck"]
    assert (tmp_path / "logs/causal-portable-synccheck.log").read_text().startswith("tool synccheck")
    assert show(iter(outcomes), [job], ["synccheck"]) == 0
    assert capsys.readouterr().out.count("clean") == 2


def outcome(job: Job, tool: str, clean: bool = True, found: str = "_forward _delta") -> Outcome:
    return Outcome(job.module.stem, job.part, tool, job.digest, clean, found, 1.0)


def test_what_was_clean_is_not_run_again_and_the_rest_waits_for_its_time(tmp_path: Path, job: Job) -> None:
    rows, other = tmp_path / "new/rows.jsonl", Job(job.spec, job.module, "hopper")
    known = [outcome(job, ""), outcome(job, "memcheck"), outcome(other, ""), outcome(other, "memcheck", False)]
    assert show(iter(known), [job, other], ["memcheck"], rows) == 1
    with rows.open("a") as file:
        file.write(rows.read_text()[:50])
    assert read(rows) == known and read(tmp_path / "none.jsonl") == []
    # What was not clean is left when the time is up, and that makes the whole not clean.
    now = list(runs(tmp_path, "none", tools=("memcheck",)).of([job, other], known, lambda: True))
    assert now == [*known[:3], None]
    assert show(iter(now), [job, other], ["memcheck"], rows, known) == 1
    assert read(rows) == known
    # Other kernels are another module, another text around them is not.
    module = job.module / "__init__.py"
    module.write_text(module.read_text() + "# more\n")
    assert list(runs(tmp_path, "none", tools=()).of([job], known)) == known[:1]
    change(job.module, ('"forward": "', '"forward": "0'))
    assert list(runs(tmp_path, "none").of([job], known, lambda: True)) == [None]


def test_parts_are_chosen_by_name(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    assert [job.part for job in jobs_of(["causal"], ["portable"], None, tmp_path)] == [
        "portable",
        "portable, deterministic",
        "portable, packed",
        "serving",
    ]
    (job,) = jobs_of(["causal"], ["portable", "hopper"], ["hopper, D256"], tmp_path)
    assert job.part == "hopper, D256" and (job.module / "__init__.py").is_file()
    with pytest.raises(UsageError, match="no part 'wide'; expected one of portable; portable, deterministic; "):
        jobs_of(["causal"], ["hopper"], ["wide"], tmp_path)


def test_the_table_counts_clean_runs_and_names_kernels_that_none_launched(job: Job) -> None:
    launched = kernels_of(job.sources["__init__.py"])
    assert {"_forward", "_forward_sm90", "_backward_kv_wide_sm90", "collect_dq"} <= launched
    hopper = Job(job.spec, job.module, "hopper")
    outcomes = [
        outcome(job, ""), outcome(job, "memcheck"), outcome(job, "racecheck", False, "10 hazards"),
        outcome(hopper, "", found="_delta"), outcome(hopper, "memcheck"),
    ]  # fmt: skip
    assert by_kernel(outcomes, ["_never"], ["memcheck", "racecheck"]) == [
        ["kernel", "memcheck", "racecheck", "variants"],
        ["_delta", "2 of 2", "0 of 2", "causal"],
        ["_forward", "1 of 1", "0 of 1", "causal"],
        ["_never", "0 of 0", "0 of 0", "not launched"],
    ]


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split(")")[1].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_run_that_does_not_end_is_killed_with_its_child(tmp_path: Path, job: Job) -> None:
    tool = stand_in(tmp_path, f"sleep 60 & echo $! > {tmp_path}/child; wait")
    (tmp_path / "logs").mkdir()
    outcome = runs(tmp_path, tool, limit=1.0).run(job, "memcheck")
    assert not outcome.clean and outcome.found == "not done within 1 s" and outcome.seconds < 30
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 30
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_alive(child)
    assert show(iter([outcome]), [job], ["memcheck"]) == 1


def test_what_fails_without_the_tool_is_not_run_under_it(tmp_path: Path, job: Job) -> None:
    broken = Job(job.spec, tmp_path / "none", "portable")
    (found,) = runs(tmp_path, stand_in(tmp_path, "exit 0")).of([broken])
    assert found is not None and not found.clean and "no generated module" in found.found


def test_parts_have_the_configs_of_their_backend_and_fuse_dq_where_they_may(repository: Path) -> None:
    for name in ("causal", "document"):
        variant = load(repository / f"variants/{name}.yaml")
        for part in parts().values():
            for kernel, config in part.configs(variant).items():
                assert checked(kernel, config).backend == part.backend
    chosen = {name: part.configs(load(repository / "variants/causal.yaml")) for name, part in parts().items()}
    assert chosen["portable"]["forward"] == Config(64, 64, 4, 2)
    assert {name for name, configs in chosen.items() if not configs["backward_kv"].fuse_dq} == {"hopper, D256"}
    assert chosen["hopper, D256"]["backward_kv"].BN == 64
    document = load(repository / "variants/document.yaml")
    assert parts()["hopper, D128"].configs(document)["backward_kv"].delay_dq
