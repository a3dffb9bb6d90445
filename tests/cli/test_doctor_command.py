"""`flashgen doctor`."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Run

import flashgen.compiling
import flashgen.verify
from flashgen.cli import doctor
from flashgen.compiling import Compiled, Job
from flashgen.runtime.gpus import GPUS


def test_doctor_finds_what_is_here(run: Run) -> None:
    ended = run("doctor", "--no-targets", "--json")
    assert ended.code == 0
    found = {document["what"]: document["state"] for document in ended.documents}
    assert {found[name] for name in ("python", "flashgen cache", "triton cache", "output folder")} == {"ok"}


def test_doctor_compiles_one_probe_for_each_target(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def known_but_the_last(path: Path, jobs: list[Job]) -> tuple[Compiled, ...]:
        return (*map(Compiled, jobs[:-1]), Compiled(jobs[-1], error="no such processor"))

    monkeypatch.setattr(flashgen.compiling, "compile_all", known_but_the_last)
    ended = run("doctor", "--json")
    assert ended.code == 0
    found = [(document["what"], document["state"]) for document in ended.documents if document["what"] in GPUS]
    assert found == [*((target, "ok") for target in [*GPUS][:-1]), ([*GPUS][-1], "optional")]


def test_doctor_names_what_is_missing_and_exits_with_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: "0.1" if name != "lost" else lost())
    monkeypatch.setattr(doctor, "requires", lambda name: ["lost>=2", "old>=1 ; extra == 'test'", "stale>=3"])
    Path("file").touch()
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", "file/cache")
    ended = run("doctor", "--no-targets", "--json")
    assert ended.code == 1
    missing = {d["what"]: d["remedy"] for d in ended.documents if d["state"] == "missing"}
    assert missing == {
        "lost": "pip install 'lost>=2'",
        "stale": "pip install 'stale>=3'",
        "flashgen cache": "name another one in FLASHGEN_CACHE_DIR",
    }


def lost() -> str:
    raise doctor.PackageNotFoundError("lost")
