"""A kernel that is registered and nowhere else named goes all the way, from its template to its record: no other file
says that it exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from square_kernel import SQUARE, SQUARE_TEXT, square
from test_tune import PretendedMachine, pretended  # noqa: F401 - a fixture

from flashgen.codegen import default_of, generate, load_module, render
from flashgen.codegen.registry import register_text, unregister_text
from flashgen.compiling import Job, jobs_for
from flashgen.explain import explain
from flashgen.problems.problem import Problem
from flashgen.runtime.registry import kernel_of, register, unregister
from flashgen.runtime.usable_records import read_record
from flashgen.spec import load
from flashgen.spec.variant import Variant
from flashgen.tuning.tune import tune
from flashgen.tuning.worker import Worker
from flashgen.verify import verify_config
from flashgen.verify.exercise import parts

SPEC = {
    "name": "squared",
    "causal": True,
    "dtype": "float32",
    "head_dim": 64,
    "tune": {"shapes": [{"batch": 1, "heads": 4, "q_len": 1024}]},
}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register_text(SQUARE_TEXT)
    register(SQUARE)
    yield
    unregister(SQUARE)
    unregister_text(SQUARE_TEXT)


@pytest.fixture
def variant() -> Variant:
    return load(SPEC)


def test_it_is_the_default_of_what_it_serves_alone(variant: Variant) -> None:
    default = default_of(variant, "forward")
    assert default("sm_80", "float32", 64, 64) == square(32)
    assert default("sm_80", "float32", 128, 64).backend == default("sm_80", "float16", 64, 64).backend == "portable"
    assert kernel_of("forward", square(16)) is SQUARE
    with pytest.raises(ValueError, match="config BM is 128; expected 16, 32 or 64 for forward_square"):
        kernel_of("forward", square(128))


def test_it_is_rendered_from_its_own_template(variant: Variant) -> None:
    files = render(variant)
    assert "# Tiles are squares.\n@triton.jit" in files["forward_square.py"]
    assert files["forward_square.py"].startswith('"""squared: out and lse, in square tiles.')
    assert "    forward_square.py         out and lse, in square tiles\n" in files["__init__.py"]
    assert '"forward_square": _forward_square,' in files["__init__.py"]
    with pytest.raises(ValueError, match="'forward_square' is registered already"):
        register_text(SQUARE_TEXT)
    unregister_text(SQUARE_TEXT)
    try:
        others = render(variant)
    finally:
        register_text(SQUARE_TEXT)
    assert others.keys() == files.keys() - {"forward_square.py"}
    assert all(text == files[name] for name, text in others.items() if name != "__init__.py")


def test_it_is_compiled_offline(variant: Variant, tmp_path: Path) -> None:
    path = generate(variant, tmp_path)
    (job,) = (job for job in jobs_for(variant, ["sm_80"]) if job.kernel == "forward")
    assert job == Job("sm_80", "forward", "float32", 64, 64, square(32))
    with Worker("square_kernel:compiler", str(path)) as worker:
        found = worker.ask(job, 120.0)
    assert found.error is None and found.registers and found.shared


def test_it_is_proven(variant: Variant, tmp_path: Path) -> None:
    module = load_module(generate(variant, tmp_path))
    problem = Problem(1, 2, 1, 70, 70, 64, 64, "float32")
    proof = verify_config(module, variant, problem, square(16, order=1), "cuda" if torch.cuda.is_available() else "cpu")
    assert proof.ok, proof
    q = torch.zeros(1, 1, 4, 64, dtype=torch.float16)
    with pytest.raises(ValueError, match="config backend is 'square'; it takes float32 with heads of at most 64"):
        module.attention(q, q, q, config=square(16))
    assert {"square", "square, deterministic"} <= {*parts()}


@pytest.mark.usefixtures("pretended")
def test_it_is_tuned_and_found(variant: Variant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    (outcome,) = tune(variant, generate(variant, tmp_path), kernels=["forward"], preset="full")
    timed = [config for _, config in PretendedMachine.last.timed]
    # Its default comes first, then what it wants tried at once.
    assert timed[:2] == [square(32), square(32, order=1)]
    assert {config for config in timed if config.backend == "square"} == {*SQUARE.space(None)}
    assert outcome.record is not None
    assert read_record(tmp_path / "cache" / "tuned" / variant.name, outcome.record.key) == outcome.record


def test_it_is_explained(variant: Variant, tmp_path: Path) -> None:
    found = explain(variant, tmp_path, length=64)
    assert "forward_square: float32 with heads of at most 64" in found.explanation.kernels
    if not torch.cuda.is_available():
        assert [used.config for used in found.configs if used.kernel == "forward"] == [square(32)]
