"""The proof of dropout can fail: kernels that drop otherwise than they say are caught by the quick level."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from device_functions import written_out
from dropping import dropping
from packages import changed

from flashgen.codegen import load_module, render, write_package
from flashgen.verify import CaseResult, cases_for, gradient_cases_for, run_case

FORWARD, BACKWARD = ("forward.py",), ("backward_kv.py", "backward_q.py", "delta.py")
KEPT = "where_kept(bits, dropout_p, p)"
PRODUCT = f"acc = tl.dot(\n            {KEPT}"
MUTATIONS = [
    ("other bits in the backward pass", BACKWARD, "0xD256D193", "0xD256D195"),
    ("bits of the next head", FORWARD, "b.to(tl.uint32), h.to(tl.uint32)", "b.to(tl.uint32), h.to(tl.uint32) + 1"),
    ("bits of the first sequence", FORWARD, "b.to(tl.uint32), h.to(tl.uint32)", "b.to(tl.uint32) * 0, h.to(tl.uint32)"),
    ("rows counted from each tile's first", FORWARD, "stream, row0, each_row", "stream, 0, each_row"),
    ("keys counted from each tile's first", ("backward_q.py",), "each_row, start, each_key", "each_row, 0, each_key"),
    ("one bit less of rows", ("backward_kv.py",), "(offsets & 8) != 0", "(offsets & 4) != 0"),
    ("no scale", FORWARD, "l * (1.0 - dropout_p)", "l"),
    ("a scale applied twice", FORWARD, "l * (1.0 - dropout_p)", "l * (1.0 - dropout_p) * (1.0 - dropout_p)"),
    ("a scale left out of p", BACKWARD, " + tl.log2(1.0 - dropout_p)", ""),
    ("a scale left out of delta", BACKWARD, "delta *= 1.0 - dropout_p", "delta *= 1.0"),
    ("dropped before the sum", FORWARD, PRODUCT, f"l -= tl.sum(p - {KEPT}, 1)\n        {PRODUCT}"),
    ("dv of all weights", ("backward_kv.py",), KEPT, "p"),
    ("dk of all weights", ("backward_kv.py",), "where_kept(bits, dropout_p, dp)", "dp"),
    ("a round less", BACKWARD, "static_range(5)", "static_range(4)"),
    ("rows counted in ones", ("backward_q.py",), "rows * 0x9E3779B9", "rows"),
    ("the other ones dropped", FORWARD, "bits - lowest < ", "bits - lowest >= "),
    ("seven bits of a threshold", FORWARD, "tl.cast(p * 32768, tl.uint32)", "tl.cast(p * 128, tl.uint32) * 256"),
]  # fmt: skip


@cache
def rendered() -> dict[str, str]:
    portable = (*FORWARD, *BACKWARD)
    return {file: written_out(text) if file in portable else text for file, text in render(dropping("causal")).items()}


@pytest.mark.parametrize(("name", "files", "old", "new"), MUTATIONS, ids=[each[0] for each in MUTATIONS])
def test_a_mistake_is_caught(name: str, files: tuple[str, ...], old: str, new: str, tmp_path: Path) -> None:
    package = rendered()
    chosen = {file: text for file, text in package.items() if file in files}
    write_package(tmp_path / "causal_dropout", {**package, **changed(chosen, (old, new))})
    failure = first_failure(tmp_path / "causal_dropout", backward=files != FORWARD)
    assert failure is not None
    # Caught by what it computes, not by failing to run.
    assert "Error" not in failure.detail, failure


def first_failure(path: Path, backward: bool) -> CaseResult | None:
    module, variant = load_module(path), dropping("causal")
    cases = (gradient_cases_for if backward else cases_for)(variant, "quick", gpu=False, scheduled=False)
    results = (run_case(module, variant, case, "cpu") for case in cases)
    return next((result for result in results if not result.ok), None)
