"""A proof holds for other calls of the same compiled kernel, and for no other kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_tools import DEVICE, IDENTITY, FakeTools

from flashgen.problems.problem import Problem
from flashgen.runtime.config import Config
from flashgen.runtime.defaults import built_in
from flashgen.tuning.proofs import Proofs
from flashgen.tuning.workloads import Workload, workloads

CONFIG = Config(64, 64, 4, 2)
DENSE = Problem(2, 8, 2, 1024, 1024, 64, 64, "bfloat16")
DECODE = replace(DENSE, q_len=1, kv_len=8192, mode="decode")
PAGED = replace(DECODE, mode="paged", block_size=16)
PACKED = replace(DENSE, mode="varlen", min_len=32)
KERNELS = ("forward", "decode", "decode_paged")


def workload(problem: Problem) -> Workload:
    (found,) = workloads(
        [problem], replace(IDENTITY, templates=dict.fromkeys(KERNELS, "ba9876543210")), DEVICE, KERNELS
    )
    return found


def proofs_of(first: Problem, then: Problem) -> int:
    """How many proofs one config has of both."""
    tools = FakeTools()
    proofs = Proofs(tools, lambda kernel, packed: built_in(kernel, False, packed))
    for problem in (first, then):
        assert proofs.proven(workload(problem), [CONFIG], {}) == CONFIG
    return len(tools.proven)


@pytest.mark.parametrize(
    ("problem", "change"),
    [
        (DENSE, {"dtype": "float16"}),
        (DENSE, {"head_dim": 128}),
        (DENSE, {"v_head_dim": 128}),
        (DENSE, {"kv_heads": 8}),
        (DENSE, {"mode": "varlen", "min_len": 32}),
        (DECODE, {"q_len": 8}),  # 32 rows of a KV head, where four fill a tile of 16
        (DECODE, {"kv_heads": 4}),
        (PAGED, {"q_len": 8}),
        (PAGED, {"block_size": 64}),
        (PAGED, {"cache": "int8"}),
    ],
)
def test_another_kernel_is_proven_anew(problem: Problem, change: dict[str, Any]) -> None:
    assert proofs_of(problem, replace(problem, **change)) == 2


@pytest.mark.parametrize(
    ("problem", "change"),
    [
        (DENSE, {"q_len": 4096, "kv_len": 4096}),
        (DENSE, {"batch": 16}),
        (PACKED, {"q_len": 4096, "kv_len": 4096}),
        (DECODE, {"q_len": 2}),
        (DECODE, {"kv_len": 65536}),
        (PAGED, {"batch": 64}),
    ],
)
def test_other_sizes_of_one_kernel_are_proven_by_it(problem: Problem, change: dict[str, Any]) -> None:
    assert proofs_of(problem, replace(problem, **change)) == 1
