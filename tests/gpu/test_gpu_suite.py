"""The suite of comparisons on a GPU: at small sizes everything that it times runs, agrees and gets a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flashgen.bench.comparisons import GROUPS, Timed, timed_in
from flashgen.bench.run import machine
from flashgen.bench.suite import Suite

pytestmark = pytest.mark.gpu


def small(timed: Timed) -> Timed:
    length = min(512, timed.problem.q_len // 8)
    return replace(timed, problem=replace(timed.problem, batch=1, q_len=length, kv_len=length))


@pytest.mark.parametrize("group", ["forward-sizes", "backward-sizes", "learned"])
def test_a_group_is_timed_together(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: Path
) -> None:
    monkeypatch.chdir(repository)
    timed = list(dict.fromkeys(map(small, timed_in(GROUPS[group]))))
    found = Suite(machine(), tmp_path, rounds=2).run(timed)
    assert set(found) == set(timed)
    assert {str(each): row.note for each, row in found.items() if row.tflops is None} == {}
