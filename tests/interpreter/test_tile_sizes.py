"""The same inputs under every tile size of the search space: all within the budget of one truth, so of each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from flashgen.codegen import uses_schedule
from flashgen.problems.problem import Problem
from flashgen.runtime import Config
from flashgen.runtime.kernels.kernel import Task
from flashgen.spec import load
from flashgen.tuning.space import search_space
from flashgen.verify import Case, run_case

GALLERY = sorted((Path(__file__).parent.parent.parent / "variants").glob("*.yaml"))
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


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_tile_sizes_change_nothing(gallery_module: Callable[[str], ModuleType], path: Path) -> None:
    variant = load(path)
    sizes = tile_sizes(uses_schedule(variant))
    assert len(sizes) >= 12
    # Every other one, in turn.
    for BM, BN in sorted(sizes)[GALLERY.index(path) % 2 :: 2]:
        case = Case(f"{BM}x{BN}", PROBLEM, Config(BM, BN, 4, 1))
        params = {p.name: 40 for p in variant.runtime_params if type(p.value) is int}
        result = run_case(gallery_module(path.stem), variant, replace(case, params=tuple(params.items())), "cpu")
        assert result.ok, str(result)
