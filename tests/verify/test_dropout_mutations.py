"""The proof of dropout can fail: kernels that drop otherwise than they say are caught by the quick level."""

from __future__ import annotations

from pathlib import Path

import pytest
from dropping import dropping
from mutants import assert_caught, rendered
from packages import changed

from flashgen.codegen import write_package
from flashgen.verify import cases_for, gradient_cases_for

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


@pytest.mark.parametrize(("name", "files", "old", "new"), MUTATIONS, ids=[each[0] for each in MUTATIONS])
def test_a_mistake_is_caught(name: str, files: tuple[str, ...], old: str, new: str, tmp_path: Path) -> None:
    variant, package = dropping("causal"), tmp_path / "causal_dropout"
    right = rendered(variant)
    write_package(package, {**right, **changed({file: right[file] for file in files}, (old, new))})
    cases = (cases_for if files == FORWARD else gradient_cases_for)(variant, "quick", gpu=False, scheduled=False)
    assert_caught(package, variant, cases)
