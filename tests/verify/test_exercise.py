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

from flashgen.codegen import generate, load_module
from flashgen.problems.problem import Problem
from flashgen.spec import load
from flashgen.verify.exercise import Part, exercise, parts

pytestmark = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="on a GPU a sanitizer looks")

# Of few queries there are five times as many keys, which the decode kernel takes from 512 on.
SMALL = Problem(1, 2, 1, 70, 110, 16, 16, "bfloat16")

FLOATS = {"dtype": "float32", "grad": True}
# Reads its inputs at queries, at keys and at pairs, in a mask that needs a schedule and in one that does not.
READS = {
    "name": "reads",
    "inputs": {
        "row": {"shape": ["batch", "q_len"], **FLOATS},
        "column": {"shape": ["heads", "kv_len"], **FLOATS},
        "pair": {"shape": ["batch", "heads", "q_len", "kv_len"], **FLOATS},
        "last": {"shape": ["batch", "q_len"], "dtype": "int32", "range": [0, 60]},
        "doc": {"shape": ["batch", "kv_len"], "dtype": "int32"},
    },
    "align": "top_left",
    "score": "score * row[b, q] + pair[b, h, q, k] + column[h, k] + doc[b, k]",
    "sink": "learned",
}
MASKS = {
    "limits": {"mask": "(k <= q) & (k >= last[b, q])", "dropout": 0.1},
    "schedule": {"mask": "doc[b, k] <= last[b, q]"},
}


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


@pytest.mark.parametrize("part", ["portable", "portable, deterministic", "portable, packed", "serving"])
@pytest.mark.parametrize("mask", MASKS)
def test_inputs_are_read_where_they_are(tmp_path: Path, mask: str, part: str) -> None:
    variant = load({**READS, **MASKS[mask]})
    module = load_module(generate(variant, tmp_path))
    with watched() as seen:
        exercise(variant, module, replace(parts()[part], problem=SMALL), "cpu")
    assert not seen
