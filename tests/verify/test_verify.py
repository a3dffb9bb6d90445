"""verify() through its front door: a child process that interprets, its report, and its ways to fail."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from packages import change

from flashgen.codegen import generate, load_module
from flashgen.errors import UsageError, VerificationFailed
from flashgen.problems.problem import Problem
from flashgen.runtime import Config
from flashgen.spec import load
from flashgen.verify import CaseResult, Report, verify, verify_config

SPEC = {"name": "plain", "description": "Nothing but softmax.", "causal": True}


@pytest.fixture
def module(tmp_path: Path) -> Path:
    return generate(load(SPEC), tmp_path)


def test_a_right_module_passes(module: Path) -> None:
    report = verify(module, load(SPEC), device="cpu")
    assert report.passed and not report.failures
    assert len(report.cases) >= 8 and report.level == "quick"
    assert 0 < max(case.error / case.budget for case in report.cases) <= 1
    assert str(report).startswith(f"{len(report.cases)} cases passed on the CPU (Triton's interpreter)")


def test_a_wrong_module_fails_and_says_where(module: Path) -> None:
    change(module, ("kv_h = h // (heads // kv_heads)", "kv_h = 0"))
    report = verify(module, load(SPEC), device="cpu", configs=[Config(64, 64, 4, 1)])
    assert not report.passed
    assert "odd lengths, BM=64 BN=64" in report.failures[0].name
    assert "out at [batch, head, row] [0, " in str(report) or "lse at [batch, head, row] [0, " in str(report)


def test_a_mask_that_hides_all_is_noted(tmp_path: Path) -> None:
    """All is as the formula says, and nothing was compared."""
    hidden = load({"name": "hidden", "causal": True, "mask": "k > q"})
    report = verify(generate(hidden, tmp_path), hidden, device="cpu")
    assert report.passed
    assert report.note.startswith("no query saw a key in any case, ")
    seen = load({"name": "seen", "mask": "k > q"})
    assert verify(generate(seen, tmp_path), seen, device="cpu").note == ""


def test_a_module_that_does_not_start_is_named(module: Path) -> None:
    (module / "__init__.py").write_text("raise RuntimeError('not today')\n")
    with pytest.raises(VerificationFailed, match=r"plain: .* status 1: RuntimeError: not today"):
        verify(module, load(SPEC), device="cpu")


def test_an_exception_of_a_kernel_is_a_failed_case(module: Path) -> None:
    change(module, ("tl.log2(l)", "tl.log_2(l)"))
    report = verify(module, load(SPEC), device="cpu")
    served_by_others = {case.name for case in report.cases if case.name.startswith(("decode", "paged"))}
    assert {case.name for case in report.cases if case.ok} == served_by_others
    assert "has no attribute 'log_2'" in report.failures[0].detail


def test_the_time_limit_leaves_cases_unproven(module: Path) -> None:
    report = verify(module, load(SPEC), device="cpu", seconds=0)
    assert not report.passed
    assert report.failures[-1].detail == "not run: the limit of 0 s was reached"


def test_an_unknown_level_is_refused(module: Path) -> None:
    with pytest.raises(UsageError, match="level 'slow'; expected one of quick, full"):
        verify(module, load(SPEC), level="slow", device="cpu")


def test_no_cases_prove_nothing() -> None:
    assert not Report("quick", "nowhere", (), 0.0).passed


def test_a_report_survives_json() -> None:
    cases = (CaseResult("a", 1e-3, 2e-3, True, "out"), CaseResult("b", float("inf"), 0.0, False, "it crashed"))
    report = Report("quick", "here", cases, 1.5)
    text = json.dumps(report.as_dict(), allow_nan=False)
    assert Report.from_dict(json.loads(text)) == report


def test_a_tuned_config_is_proven_on_a_smaller_problem(module: Path) -> None:
    problem = Problem(2, 16, 16, 70, 64, 64, 64, "bfloat16")
    right = verify_config(load_module(module), load(SPEC), problem, Config(64, 64, 4, 1), "cpu")
    assert right.ok, right
    change(module, ("kv_h = h // (heads // kv_heads)", "kv_h = 0"))
    wrong = verify_config(load_module(module), load(SPEC), problem, Config(64, 64, 4, 1), "cpu")
    assert not wrong.ok


@pytest.mark.parametrize(
    ("kernel", "config", "harm"),
    [
        ("backward_q", Config(32, 64, 4, 1), ("(dq * scale)", "(dq * (scale + scale))")),
        ("backward_kv", Config(64, 32, 4, 1, fuse_dq=0), ("(dk * scale)", "(dk * (scale + scale))")),
        (
            "backward_kv",
            Config(32, 32, 4, 1, fuse_dq=1),
            ("dq_desc.atomic_add([start, 0], dq", "dq_desc.atomic_add([start, 0], dq + dq"),
        ),
    ],
)
def test_a_tuned_config_of_the_backward_is_proven_by_its_gradients(
    module: Path, kernel: str, config: Config, harm: tuple[str, str]
) -> None:
    problem = Problem(2, 4, 2, 70, 64, 64, 64, "float16")
    right = verify_config(load_module(module), load(SPEC), problem, config, "cpu", kernel)
    assert right.ok, right
    change(module, harm)
    assert not verify_config(load_module(module), load(SPEC), problem, config, "cpu", kernel).ok


# A mistake of the tiles of 64 keys alone.
OF_A_HEAD = "kv_h = h // (heads // kv_heads)", "kv_h = h // (heads // kv_heads) if BN != 64 else 0"
OF_AN_ITEM = "kv_h = tl.program_id(0) % kv_heads", "kv_h = tl.program_id(0) % kv_heads if BN != 64 else 0"
DENSE = Problem(1, 4, 2, 70, 64, 16, 16, "float16")


@pytest.mark.parametrize(
    ("kernel", "problem", "harm"),
    [
        ("forward", DENSE, OF_A_HEAD),
        ("forward", replace(DENSE, mode="varlen", min_len=8), OF_A_HEAD),
        ("backward_q", DENSE, ("(dq * scale)", "(dq * (scale if BN != 64 else 0.0))")),
        ("backward_kv", DENSE, ("(dk * scale)", "(dk * (scale if BN != 64 else 0.0))")),
        ("decode", replace(DENSE, q_len=1, kv_len=600, mode="decode"), OF_AN_ITEM),
        ("decode_paged", replace(DENSE, q_len=1, kv_len=90, mode="paged", block_size=16), OF_AN_ITEM),
    ],
)
def test_a_config_is_proven_and_no_other(module: Path, kernel: str, problem: Problem, harm: tuple[str, str]) -> None:
    """The proof of a winner of tuning is one of its own tiles: those of the built-in config may be right."""
    change(module, harm)
    more = {"fuse_dq": 0} if kernel == "backward_kv" else {}
    wrong, right = (
        verify_config(load_module(module), load(SPEC), problem, Config(32, BN, 4, 1, **more), "cpu", kernel)
        for BN in (64, 32)
    )
    assert right.ok and not wrong.ok, (right, wrong)
