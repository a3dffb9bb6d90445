"""`import flashgen` and `flashgen.build`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import flashgen
from flashgen.api import Steps, construct
from flashgen.compiling import Compiled, Job
from flashgen.errors import SpecError, UsageError
from flashgen.runtime.registry import TUNED

HEAVY = ("torch", "triton", "jinja2", "optuna", "pydantic", "matplotlib", "yaml")


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = f"import sys, flashgen; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_importing_a_generated_module_loads_no_compiler(repository: Path) -> None:
    code = (
        "import sys, torch, triton\nbefore = set(sys.modules)\nfrom generated import alibi\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new & {'jinja2', 'optuna', 'pydantic', 'yaml', 'matplotlib', 'ruff'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="module 'flashgen' has no attribute 'nope'"):
        _ = flashgen.nope
    assert {"build", "load", "__version__"} <= set(dir(flashgen))


def test_build_from_a_dict_returns_a_module_that_runs(tmp_path: Path) -> None:
    spec = {"name": "near", "params": {"W": 5}, "mask": "abs(q - k) < W"}
    module = flashgen.build(spec, out=tmp_path, verify=False, compile=False, tune=False)
    assert Path(str(module.__file__)) == tmp_path / "near" / "__init__.py"
    q, k, v = (torch.randn(1, 2, 40, 16) for _ in range(3))
    torch.testing.assert_close(module.attention(q, k, v), module.reference(q, k, v), rtol=1e-4, atol=1e-5)


def test_build_tells_each_step(tmp_path: Path) -> None:
    steps: list[str] = []

    def progress(text: str, passing: bool = False) -> None:
        steps.append(text)

    asked = Steps(targets=["sm_80"], verify=False, tune=False)
    built = construct({"name": "plain", "head_dim": 16}, tmp_path, asked, progress)
    assert steps == [f"rendered {tmp_path / 'plain'}", "compiling for sm_80"]
    found = [(c.job.target, c.job.kernel, c.job.head_dim, c.error) for c in built.compiled]
    assert found == [("sm_80", kernel, 16, None) for kernel in (*TUNED, "delta")]


@pytest.mark.parametrize(
    ("spec", "targets", "error"),
    [({"name": "x", "mask": "q"}, None, SpecError), ({"name": "x"}, ["sm_1"], UsageError)],
)
def test_a_wrong_input_writes_nothing(
    tmp_path: Path, spec: dict[str, object], targets: list[str] | None, error: type[Exception]
) -> None:
    with pytest.raises(error):
        flashgen.build(spec, out=tmp_path / "out", targets=targets, verify=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"targets": "sm_90"}, "targets 'sm_90'; expected a list of names"),
        ({"targets": 90}, "targets 90; expected a list of names"),
        ({"out": ""}, "out ''; expected the path of a folder"),
        ({"out": None}, "out None; expected the path of a folder"),
    ],
    ids=str,
)
def test_what_is_no_list_or_no_folder_is_said(
    given: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as error:
        flashgen.build({"name": "plain"}, **{"verify": False, **given})
    assert str(error.value) == message
    assert not any(tmp_path.iterdir())


def test_targets_may_come_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Job] = []

    def noted(path: Path, jobs: Sequence[Job]) -> tuple[Compiled, ...]:
        compiled.extend(jobs)
        return tuple(map(Compiled, jobs))

    monkeypatch.setattr(flashgen.compiling, "compile_all", noted)
    names = ("sm_80", "gfx942")
    flashgen.build({"name": "plain", "head_dim": 16}, out=tmp_path, targets=iter(names), verify=False, tune=False)
    assert {job.target for job in compiled} == {*names}
