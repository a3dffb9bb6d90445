"""The mods that are held against FlexAttention can be traced, and what is measured of them is told."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import torch

from flashgen.bench import mods
from flashgen.bench.known_mods import MODS
from flashgen.bench.mods import Measured, main
from flashgen.flex import to_spec
from flashgen.problems.problem import Problem
from flashgen.spec import load

SMALL = Problem(1, 4, 4, 2048, 2048, 16, 16, "float32")
SPEEDS = {"flashgen forward": 100.0, "FlexAttention forward": 200.0, "flashgen backward": 100.0}
FIRST = dict.fromkeys((*SPEEDS, "FlexAttention backward"), 2.5)


@pytest.mark.parametrize("name", MODS)
def test_a_mod_is_one_of_the_language(name: str) -> None:
    score, mask = MODS[name](SMALL, "cpu")
    variant = load(to_spec(score, mask, name=name)[0])
    assert variant.name == name
    at = torch.arange(SMALL.kv_len)
    assert mask is None or set(mask(0, 0, at[:, None], at).unique().tolist()) == {False, True}


def test_the_table_ends_in_geometric_means(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    times = {"causal": 200.0, "alibi": 800.0}

    def measured(name: str, rounds: int) -> Measured:
        return Measured(FIRST, SPEEDS | {"FlexAttention backward": times[name]})

    monkeypatch.setattr(mods, "on_a_gpu", lambda work: work())
    monkeypatch.setattr(mods, "in_a_process_of_its_own", measured)
    assert main(["causal", "alibi"]) == 0
    told = capsys.readouterr().out
    assert "| causal | 100 | 200 | 2.00 | 100 | 200 | 2.00 | 2.5 + 2.5 | 2.5 + 2.5 |" in told
    assert told.endswith("geometric means of 2: forward 2.00, backward 4.00\n")


def test_a_mod_that_could_not_be_measured_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ran(line: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(line, 1, "", "a traceback\nRuntimeError: no GPU\n")

    monkeypatch.setattr(mods, "on_a_gpu", lambda work: work())
    monkeypatch.setattr(subprocess, "run", ran)
    assert main(["softcap"]) == 1
    assert "| softcap | RuntimeError: no GPU |" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["nobody"])
