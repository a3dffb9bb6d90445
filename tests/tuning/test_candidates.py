"""Which configs a search begins with."""

from dataclasses import replace
from pathlib import Path

import pytest

from flashgen.codegen.offline import Resources
from flashgen.problems.problem import Problem
from flashgen.runtime.defaults import built_in
from flashgen.runtime.identity import Identity
from flashgen.runtime.records import Device
from flashgen.tuning.candidates import Candidates
from flashgen.tuning.presets import LEAST_TRIALS, PRESETS
from flashgen.tuning.workloads import Workload, workloads

IDENTITY = Identity(
    "document", "0123456789ab", dict.fromkeys(("forward", "backward_kv"), "ba9876543210"), "document.yaml", {}
)


def workload(head_dim: int, kernel: str = "backward_kv", dtype: str = "bfloat16") -> Workload:
    problem = Problem(2, 16, 16, 8192, 8192, head_dim, head_dim, dtype)
    (only,) = workloads([problem], IDENTITY, Device("NVIDIA H200", "sm_90", "3.6"), [kernel])
    return only


def candidates_of(preset: str, folder: Path) -> Candidates:
    return Candidates(PRESETS[preset], [folder], frozenset(), lambda kernel, _: built_in(kernel, False))


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("preset", ["quick", "default"])
def test_the_default_is_tried_in_both_orders_of_heads_where_there_are_two(
    head_dim: int, preset: str, tmp_path: Path
) -> None:
    candidates = candidates_of(preset, tmp_path)
    default = built_in("backward_kv", False)("sm_90", "bfloat16", head_dim, head_dim)
    assert default.backend == "hopper"
    wanted = [default, replace(default, all_heads=1)] if head_dim <= 128 else [default]
    found = candidates.of(workload(head_dim))
    assert found[: len(wanted)] == wanted
    assert head_dim <= 128 or not any(config.all_heads for config in found)


@pytest.mark.parametrize(("preset", "passed_on"), [("quick", 1), ("default", 4)])
@pytest.mark.parametrize("kernel", ["forward", "backward_kv"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_another_dtype_tries_the_best_of_one_and_else_what_is_compiled_ahead_for_it(
    head_dim: int, kernel: str, preset: str, passed_on: int, tmp_path: Path
) -> None:
    candidates = candidates_of(preset, tmp_path)
    first, second = (workload(head_dim, kernel, dtype) for dtype in ("bfloat16", "float16"))
    ahead = candidates.usual(second)
    assert len(ahead) == LEAST_TRIALS and candidates.of(second)[0] == ahead[0]
    ranking = candidates.of(first)[::-1]
    candidates.ranked(first, ranking)
    candidates.won(first, ranking[0])
    found = candidates.of(second)
    best = ranking[:passed_on]
    assert found[0] == ahead[0] and set(best) <= set(found) <= {*best, *ahead}
    assert len(found) == len(set(found)) >= LEAST_TRIALS


def test_another_dtype_leaves_out_what_did_not_compile_well_in_one(tmp_path: Path) -> None:
    candidates = candidates_of("quick", tmp_path)
    first, second = (workload(64, "forward", dtype) for dtype in ("bfloat16", "float16"))
    *_, spilling = ahead = candidates.usual(second)
    known = candidates.compiled(first)
    known |= dict.fromkeys(ahead, Resources(168, 0, 1024, False, 1.0))
    known[spilling] = Resources(168, 4000, 1024, False, 1.0)
    candidates.ranked(first, ahead[:1])
    assert candidates.of(second) == ahead[:-1]


def test_where_nothing_compiled_well_in_one_dtype_another_tries_as_much(tmp_path: Path) -> None:
    candidates = candidates_of("quick", tmp_path)
    first, second = (workload(64, "forward", dtype) for dtype in ("bfloat16", "float16"))
    ahead = candidates.usual(second)
    candidates.compiled(first).update(dict.fromkeys(ahead, Resources(168, 4000, 1024, False, 1.0)))
    candidates.ranked(first, ahead[:1])
    assert candidates.of(second) == ahead
