"""Every config of every kernel's space computes what the formula says, not the fastest alone; at an odd size too."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType

import pytest
import torch
from gallery import VARIANTS

from flashgen.codegen import uses_schedule
from flashgen.problems.problem import Problem
from flashgen.runtime import Config
from flashgen.runtime.kernels.kernel import Task
from flashgen.runtime.registry import FAMILIES
from flashgen.tuning.space import search_space
from flashgen.verify import Case, run_case
from flashgen.verify.cases import Backward

# Between them: no mask, one bound, two, a schedule, a table of pairs, a cap.
NAMES = ("full", "causal", "sliding_window", "document", "relative_bias", "softcap")
PROBLEMS = (Problem(1, 2, 2, 256, 256, 64, 64, "bfloat16"), Problem(1, 4, 2, 201, 333, 64, 64, "bfloat16"))
AT_ONCE = 8


def configs_of(name: str, kernel: str) -> list[Config]:
    return _configs(kernel, uses_schedule(VARIANTS[name]))


@cache
def _configs(kernel: str, scheduled: bool) -> list[Config]:
    capability = "sm_{}{}".format(*torch.cuda.get_device_capability()) if torch.cuda.is_available() else "sm_90"
    return list(search_space(Task(kernel, capability, "bfloat16", 64, 64, 256, 256, scheduled)).configs)


def in_batches(configs: list[Config]) -> list[tuple[Config, ...]]:
    return [tuple(configs[start : start + AT_ONCE]) for start in range(0, len(configs), AT_ONCE)]


def case_of(kernel: str, config: Config, problem: Problem) -> Case:
    backward = {
        "forward": None,
        "backward_q": Backward(q=config, deterministic=True),
        "backward_kv": Backward(kv=config),
    }[kernel]
    return Case(f"{kernel}, {config}, on {problem}", problem, None if backward else config, backward=backward)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "kernel", "configs"),
    [
        pytest.param(name, kernel, configs, id=f"{name}-{kernel}-{number}")
        for name in NAMES
        for kernel in FAMILIES
        for number, configs in enumerate(in_batches(configs_of(name, kernel)))
    ],
)
def test_every_config_is_right(
    gallery_module: Callable[[str], ModuleType], name: str, kernel: str, configs: tuple[Config, ...]
) -> None:
    wrong = []
    for config in configs:
        for problem in PROBLEMS:
            result = run_case(gallery_module(name), VARIANTS[name], case_of(kernel, config, problem), "cuda")
            # What does not fit the GPU is dropped by the tuner too.
            if not result.ok and "OutOfResources" not in result.detail:
                wrong.append(str(result))
    assert not wrong, "\n".join(wrong)
