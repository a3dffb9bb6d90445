"""NaN and infinity among what a caller passes: a kernel makes of them what the eager formula does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from odd_floats import INPUTS, SPECS, check_odd_floats

from flashgen.codegen import generate, load_module
from flashgen.spec import load


@pytest.mark.parametrize("q_len", [1, 20])
@pytest.mark.parametrize("name", SPECS)
def test_a_kernel_makes_of_them_what_the_formula_does(name: str, q_len: int, tmp_path: Path) -> None:
    module = load_module(generate(load({"name": "odd", "inputs": INPUTS, **SPECS[name]}), tmp_path))
    check_odd_floats(module, q_len, 37, torch.float32, "cpu")
