"""A generated file imports what it reads, and nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from flashgen.codegen.imports import defined_names, free_names, import_block
from flashgen.processes import program

KERNEL = """
SIZE = 4


@gluon.jit
def _kernel(q_desc, tile, BM: gl.constexpr):
    rows = [row for row in range(BM) if row < SIZE]
    tma_load(q_desc, rows, warpgroup_mma(tile, _visible(rows)), _score)
    return tl.exp2(_helper(tile), math.inf)


def _helper(x):
    return x if x else torch.tensor(0)
"""


def test_names_of_the_text_and_of_python_are_not_free() -> None:
    assert defined_names(KERNEL) == ("SIZE", "_kernel", "_helper")
    expected = {"gl", "gluon", "math", "tl", "tma_load", "torch", "warpgroup_mma", "_score", "_visible"}
    assert free_names(KERNEL) == expected


def test_imports_are_sorted_as_ruff_sorts_them(tmp_path: Path) -> None:
    block = import_block(KERNEL, {"_visible": "pair", "_score": "pair", "_other": "forward"})
    lines = block.split("\n")
    assert lines[0] == "import math"
    assert "from flashgen.runtime.gluon import tma_load" in lines
    assert lines[-1] == "from .pair import _score, _visible"
    path = tmp_path / "kernel.py"
    path.write_text(f"{block}\n\n{KERNEL.strip()}\n")
    checked = subprocess.run(
        [*program("ruff"), "check", "--isolated", "--line-length", "120", "--select", "I,F", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout


def test_a_file_that_reads_nothing_imports_nothing() -> None:
    assert import_block("def f(x):\n    return len(x)\n", {}) == ""


def test_a_name_from_nowhere_is_a_fault_of_ours() -> None:
    with pytest.raises(AssertionError, match="no import is known for elsewhere"):
        import_block("def f():\n    return elsewhere\n", {})


def test_argument_defaults_and_annotations_are_read() -> None:
    assert free_names("def f(a: tl.constexpr = math.pi):\n    return a\n") == {"math", "tl"}
