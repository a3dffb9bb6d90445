"""Which configs a search begins with."""

from dataclasses import replace
from pathlib import Path

import pytest

from flashgen.problems.problem import Problem
from flashgen.runtime.defaults import built_in
from flashgen.runtime.identity import Identity
from flashgen.runtime.records import Device
from flashgen.tuning.candidates import Candidates
from flashgen.tuning.presets import PRESETS
from flashgen.tuning.workloads import Workload, workloads

IDENTITY = Identity("document", "0123456789ab", {"backward_kv": "ba9876543210"}, "document.yaml", {})


def workload(head_dim: int) -> Workload:
    problem = Problem(2, 16, 16, 8192, 8192, head_dim, head_dim, "bfloat16")
    (only,) = workloads([problem], IDENTITY, Device("NVIDIA H200", "sm_90", "3.6"), ["backward_kv"])
    return only


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("preset", ["quick", "default"])
def test_the_default_is_tried_in_both_orders_of_heads_where_there_are_two(
    head_dim: int, preset: str, tmp_path: Path
) -> None:
    candidates = Candidates(PRESETS[preset], [tmp_path], frozenset(), lambda kernel, _: built_in(kernel, False))
    default = built_in("backward_kv", False)("sm_90", "bfloat16", head_dim, head_dim)
    assert default.backend == "hopper"
    wanted = [default, replace(default, all_heads=1)] if head_dim <= 128 else [default]
    found = candidates.of(workload(head_dim))
    assert found[: len(wanted)] == wanted
    assert head_dim <= 128 or not any(config.all_heads for config in found)
