"""The proof of packed and paged sequences passes for right kernels, whatever their formula reads of a batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from served_specs import SPECS, proven

from flashgen.problems.calls import make_inputs
from flashgen.problems.problem import Problem
from flashgen.spec import load
from flashgen.verify.row_terms import counted_apart


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_right_kernels_pass(spec: dict[str, Any], tmp_path: Path) -> None:
    results = proven(spec, tmp_path, "cpu")
    assert len(results) >= 5
    assert [f"{each.name}: {each.detail}" for each in results if not each.ok] == []


def test_slopes_are_those_of_the_sequence_that_is_asked_for() -> None:
    variant = load({"name": "sloped", **SPECS["slopes of each sequence"]})
    call = make_inputs(variant, Problem(2, 4, 2, 20, 30, 16, 16, "float32"))
    whole = counted_apart(variant, call)
    assert torch.equal(counted_apart(variant, replace(call, q=call.q[1:]), 1, 2), whole[1:])
