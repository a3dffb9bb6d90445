"""The same inputs under every tile size of the search space: all within the budget of one truth, so of each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest
from gallery import NAMES, VARIANTS

from flashgen.codegen import uses_schedule
from flashgen.problems.problem import Problem
from flashgen.runtime import Config
from flashgen.runtime.kernels.kernel import Task
from flashgen.tuning.space import search_space
from flashgen.verify import Case, run_case

PROBLEM = Problem(1, 2, 1, 75, 140, 32, 32, "float32")


def tile_sizes(scheduled: bool) -> set[tuple[int, int]]:
    # On short queries, where even the smallest tiles are worth trying. Warps and stages mean nothing here.
    tasks = [
        Task("forward", "sm_90", dtype, d, d, 64, 4096, scheduled)
        for dtype in ("bfloat16", "float32")
        for d in (64, 128)
    ]
    longer = Task("forward", "sm_90", "bfloat16", 64, 64, 8192, 8192, scheduled)
    configs = [config for task in (*tasks, longer) for config in search_space(task).configs]
    return {(config.BM, config.BN) for config in configs if config.backend == "portable"}


@pytest.mark.parametrize("name", NAMES)
def test_tile_sizes_change_nothing(gallery_module: Callable[[str], ModuleType], name: str) -> None:
    variant = VARIANTS[name]
    sizes = tile_sizes(uses_schedule(variant))
    assert len(sizes) >= 12
    # Every other one, in turn.
    for BM, BN in sorted(sizes)[NAMES.index(name) % 2 :: 2]:
        case = Case(f"{BM}x{BN}", PROBLEM, Config(BM, BN, 4, 1))
        params = {p.name: 40 for p in variant.runtime_params if type(p.value) is int}
        result = run_case(gallery_module(name), variant, replace(case, params=tuple(params.items())), "cpu")
        assert result.ok, str(result)
