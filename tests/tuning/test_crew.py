"""The processes of a run start before torch is imported, and none stays behind."""

import subprocess
import sys
import textwrap

import pytest

from flashgen import spec
from flashgen.tuning import crew, pool
from flashgen.tuning.crew import Crew

SPEC = {"name": "crewed", "causal": True}

# Ends the process where the first pool is made: with 0 where nothing heavy was imported until then.
FIRST_POOL = """
import os, sys
from flashgen.tuning.pool import CompilePool
CompilePool.__init__ = lambda *_, **__: os._exit(10 if {"torch", "triton"} & set(sys.modules) else 0)
"""


@pytest.mark.parametrize("command", ["build", "tune", "verify"])
def test_the_first_process_starts_before_torch_is_imported(command, tmp_path):
    path = tmp_path / "crewed.yaml"
    path.write_text("name: crewed\ncausal: true\n")
    call = (
        f"from flashgen.cli.app import app; app([{command!r}, {str(path)!r}, '--out', {str(tmp_path)!r}]); sys.exit(20)"
    )
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(FIRST_POOL) + call], check=False)
    assert done.returncode == 0


def test_gpus_are_counted_without_a_library(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "GPU_DEVICES", (str(tmp_path / "control"),))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert pool.gpus_in_sight() == 0
    (tmp_path / "control").touch()
    assert pool.gpus_in_sight() >= 1
    for visible, count in (("2,3,5", 3), ("0", 1), ("-1", 0), ("", 0)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert pool.gpus_in_sight() == count


@pytest.mark.parametrize(("seen", "gpus", "started"), [(2, None, [0, 1]), (2, [1], [1]), (0, [0], []), (2, (), [])])
def test_a_process_for_each_gpu_starts_at_once_and_ends_with_the_crew(tmp_path, monkeypatch, seen, gpus, started):
    monkeypatch.setattr(crew, "gpus_in_sight", lambda: seen)
    with Crew(spec.load(SPEC), tmp_path / "crewed.py", gpus) as one:
        benches = [one.bench(index) for index in range(2)]
        assert [index for index, bench in enumerate(benches) if bench.pid is not None] == started
        assert benches == [one.bench(index) for index in range(2)]
    assert [bench.pid for bench in benches] == [None, None]
