"""Compilations in processes of their own, when the one that asked for them is stopped."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from flashgen import compiling
from flashgen.compiling import Job, compile_all
from flashgen.runtime import Config
from flashgen.tuning.worker import RequestFailed

JOBS = [Job("sm_80", "forward", "bfloat16", size, size, Config(64, 64, 4, 1)) for size in (16, 32, 64, 128)]


class Endless:
    """A worker whose compiler comes to no end by itself. Once the first one is asked, Ctrl-C is pressed."""

    asked = 0

    def __init__(self, factory: str, *arguments: object) -> None:
        self._killed = threading.Event()

    def ask(self, job: Job, seconds: float) -> object:
        Endless.asked += 1
        if Endless.asked == 1:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        assert self._killed.wait(60), "nothing ended this process"
        raise RequestFailed("crashed")

    def kill(self) -> None:
        self._killed.set()

    def close(self) -> None:
        self.kill()


@pytest.mark.usefixtures("signals_end_processes")
def test_ctrl_c_does_not_wait_for_what_is_being_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiling, "Worker", Endless)
    monkeypatch.setattr(compiling, "_pool_size", lambda jobs: 2)
    monkeypatch.setattr(Endless, "asked", 0)
    with pytest.raises(KeyboardInterrupt):
        compile_all(tmp_path, JOBS)
    assert Endless.asked <= 2
