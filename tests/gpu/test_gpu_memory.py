"""Nothing of size q_len x kv_len ever exists, and offsets beyond 2^31 elements are right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from gallery import NAMES, VARIANTS

from flashgen.codegen import uses_schedule
from flashgen.problems.calls import Call, make_inputs
from flashgen.problems.problem import Problem

SCHEDULED = [name for name in NAMES if uses_schedule(VARIANTS[name])]
ALLOCATION = 2**20  # what a handful of small allocations may round up to

pytestmark = pytest.mark.gpu


def extra_bytes(module: ModuleType, call: Call) -> int:
    """Peak memory of a call beyond its arguments and its results."""
    module.attention(call.q, call.k, call.v, **call.keywords, return_lse=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out, lse = module.attention(call.q, call.k, call.v, **call.keywords, return_lse=True)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before - out.nbytes - lse.nbytes


@pytest.mark.parametrize("name", ["causal", "sliding_window", "alibi"])
def test_extra_memory_grows_linearly(gallery_module: Callable[[str], ModuleType], name: str) -> None:
    variant = VARIANTS[name]
    extra = {}
    for length in (4096, 16384, 65536, 131072):
        call = make_inputs(variant, Problem(1, 8, 8, length, length, 128, 128, "bfloat16"), "cuda")
        extra[length] = extra_bytes(gallery_module(name), call)
    assert all(extra[length] <= extra[4096] * length / 4096 + ALLOCATION for length in extra), extra


@pytest.mark.parametrize("name", SCHEDULED)
def test_a_schedule_is_small_beside_a_score_matrix(gallery_module: Callable[[str], ModuleType], name: str) -> None:
    problem = Problem(2, 16, 16, 8192, 8192, 128, 128, "bfloat16")
    call = make_inputs(VARIANTS[name], problem, "cuda")
    matrix = 2 * problem.batch * problem.heads * problem.q_len * problem.kv_len
    assert extra_bytes(gallery_module(name), call) < 0.002 * matrix + ALLOCATION


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_offsets_beyond_32_bits(gallery_module: Callable[[str], ModuleType], layout: str) -> None:
    module = gallery_module("sliding_window")
    batch, heads, length, dim = 2, 9, 1_000_000, 128
    assert batch * heads * length * dim > 2**31
    problem = Problem(batch, heads, heads, length, length, dim, dim, "bfloat16")
    call = make_inputs(VARIANTS["sliding_window"], problem, "cuda", layout=layout)
    out, lse = module.attention(call.q, call.k, call.v, return_lse=True)
    # The last head by itself, in memory of its own, has small offsets.
    last = replace(call, q=call.q[-1:, -1:].clone(), k=call.k[-1:, -1:].clone(), v=call.v[-1:, -1:].clone())
    expected, expected_lse = module.attention(last.q, last.k, last.v, return_lse=True)
    assert torch.equal(out[-1:, -1:], expected) and torch.equal(lse[-1:, -1:], expected_lse)
