"""NaN and infinity among what a caller passes, on a GPU: by the portable kernels, a GPU's own and those of decoding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from odd_floats import INPUTS, SPECS, check_odd_floats

from flashgen.codegen import generate, load_module
from flashgen.spec import load

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SPECS)
def test_a_kernel_makes_of_them_what_the_formula_does(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    module = load_module(generate(load({"name": "odd", "inputs": INPUTS, **SPECS[name]}), tmp_path))
    for q_len, kv_len in ((1, 2100), (300, 300), (600, 1100)):
        check_odd_floats(module, q_len, kv_len, dtype, "cuda")
