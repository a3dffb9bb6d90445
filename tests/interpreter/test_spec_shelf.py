"""What the specs of the shelf compute, forward and backward, is their formula."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from spec_shelf import SPECS

from flashgen.codegen import generate, load_module
from flashgen.problems.problem import Problem
from flashgen.runtime import Config
from flashgen.spec import load
from flashgen.verify.cases import Backward, Case
from flashgen.verify.run import run_case

SMALL = Config(16, 16, 4, 1)
WIDE = Case("more keys", Problem(2, 2, 1, 19, 37, 16, 16, "float32"), SMALL)
TALL = Case("more queries", Problem(1, 2, 2, 33, 18, 16, 16, "bfloat16"), SMALL)
GRADIENTS = Backward(kv=replace(SMALL, fuse_dq=0), q=SMALL)


@pytest.mark.parametrize("what", SPECS)
def test_it_is_the_formula(tmp_path: Path, what: str) -> None:
    variant = load({"name": "shelf", **SPECS[what]})
    module = load_module(generate(variant, tmp_path))
    other = TALL if list(SPECS).index(what) % 2 else WIDE
    for case in (other, replace(WIDE, backward=GRADIENTS)):
        result = run_case(module, variant, case, "cpu")
        assert result.ok, result
