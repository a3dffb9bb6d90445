"""Kernels touch no memory but their tensors', whatever calls are told on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
import triton
import triton.language as tl
from watched_accesses import watched

from flashgen.problems.problem import Problem
from flashgen.spec import load
from flashgen.verify.exercise import Part, exercise, parts

pytestmark = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="on a GPU a sanitizer looks")

SMALL = Problem(1, 2, 1, 70, 90, 16, 16, "bfloat16")


@triton.jit
def _shifted(x_ptr, out_ptr, by, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out_ptr + at, tl.load(x_ptr + at + by), mask=at < SIZE - by)


def test_an_access_out_of_bounds_is_seen() -> None:
    x = torch.zeros(20)
    for by, room, expected in ((0, 8, set()), (1, 8, {"_shifted load"}), (0, 7, {"_shifted store"})):
        with watched() as seen:
            _shifted[(1,)](x[12:], x[:room], by, SIZE=8)
        assert seen == expected


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", ["relative_bias", "document"])
def test_learned_inputs_and_schedules_take_part(
    gallery_module: Callable[[str], ModuleType], repository: Path, name: str, deterministic: bool
) -> None:
    part = Part("portable", SMALL, deterministic)
    with watched() as seen:
        exercise(load(repository / f"variants/{name}.yaml"), gallery_module(name), part, "cpu")
    assert not seen


@pytest.mark.parametrize("name", ["causal", "document"])
@pytest.mark.parametrize("part", ["portable, packed", "serving"])
def test_calls_of_every_form_stay_within_their_tensors(
    gallery_module: Callable[[str], ModuleType], repository: Path, name: str, part: str
) -> None:
    chosen = replace(parts()[part], problem=SMALL)
    with watched() as seen:
        exercise(load(repository / f"variants/{name}.yaml"), gallery_module(name), chosen, "cpu")
    assert not seen
