"""The table of what the built-in configs take of GPUs that are not at hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from flashgen.bench import targets
from flashgen.compiling import Compiled, Job
from flashgen.runtime.gpus import GPUS


def compiled_as(**found: object) -> object:
    def compile_all(path: Path, jobs: Sequence[Job]) -> tuple[Compiled, ...]:
        return tuple(Compiled(job, **found) for job in jobs)  # type: ignore[arg-type]

    return compile_all


def table_of(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    lines = capsys.readouterr().out.splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line]


def test_it_has_a_row_for_each_target_and_a_column_for_each_kernel(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compiled_as(registers=128, spills=8, shared=65 * 1024 + 1, warps=4)
    monkeypatch.setattr(targets, "compile_all", found)
    assert targets.main(["variants/causal.yaml", "--target", "sm_80", "--target", "gfx950", "--head-dim", "64"]) == 0
    head, _, *rows = table_of(capsys)
    kernels = ("forward", "backward_q", "backward_kv", "decode", "decode_paged")
    assert head == ["head_dim 64", *(f"`{kernel}`" for kernel in kernels)]
    assert rows == [[name, *["128 / 8 / 66 / 2"] * 5] for name in ("sm_80: A100, A30", "gfx950: Instinct MI350")]


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ({"error": "does not compile"}, "does not compile"),
        ({"registers": 255, "spills": 0, "shared": 0, "warps": 16}, "255 / 0 / 0 / 0"),
    ],
)
def test_what_does_not_run_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: dict[str, object], shown: str
) -> None:
    monkeypatch.setattr(targets, "compile_all", compiled_as(**found))
    assert targets.main(["--target", "sm_86", "--head-dim", "128"]) == 1
    assert all({*row[1:]} == {shown} for row in table_of(capsys)[2:])


def test_an_unknown_target_is_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert targets.main(["--target", "sm_1"]) == 2
    assert "no target 'sm_1'" in capsys.readouterr().err


@pytest.mark.matrix
@pytest.mark.parametrize("target", GPUS)
def test_built_in_configs_fit(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert targets.main(["--target", target, "--head-dim", "128"]) == 0, capsys.readouterr().out
