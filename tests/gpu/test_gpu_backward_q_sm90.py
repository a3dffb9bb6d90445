"""The Hopper kernel for dQ alone on a GPU: every variant, every kind of config, and the same bits on every run."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from types import ModuleType

import pytest
import torch
from gallery import VARIANTS

from flashgen.codegen import uses_schedule
from flashgen.problems.calls import make_inputs
from flashgen.problems.problem import Problem
from flashgen.runtime import Config, default_backward_q_config, default_scheduled_backward_q_config
from flashgen.runtime.kernels.kernel import Task
from flashgen.tuning.space import search_space
from flashgen.verify import Case, run_case
from flashgen.verify.cases import Backward

DIMS = ((64, 64), (128, 128), (256, 256), (192, 128), (96, 80), (128, 64), (40, 200))
# Lengths of queries and keys, both ways; grouped heads.
SHAPES = ((300, 300), (1, 200), (129, 1000), (700, 130))
RUNS = 20

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("on_hopper")]


def proven(module: ModuleType, name: str, problem: Problem, config: Config) -> None:
    """The gradients with this config for dQ, which deterministic calls leave to a kernel of its own; twice."""
    case = Case("hopper", problem, backward=Backward(deterministic=True, q=config))
    result = run_case(module, VARIANTS[name], case, "cuda")
    assert result.ok, f"{problem}, {config}: {result}"


@pytest.mark.parametrize(("name", "dims"), list(product(VARIANTS, DIMS)), ids=str)
def test_every_variant_and_head_dim(
    gallery_module: Callable[[str], ModuleType], name: str, dims: tuple[int, int]
) -> None:
    dtype = "float16" if dims[0] == 96 else "bfloat16"
    choose = default_scheduled_backward_q_config if uses_schedule(VARIANTS[name]) else default_backward_q_config
    config = choose("sm_90", dtype, *dims)
    assert config.backend == "hopper"
    for q_len, kv_len in SHAPES:
        proven(gallery_module(name), name, Problem(2, 4, 2, q_len, kv_len, *dims, dtype), config)


@pytest.mark.parametrize(("name", "dim"), list(product(("full", "alibi", "document"), (64, 128, 256))), ids=str)
def test_every_config(gallery_module: Callable[[str], ModuleType], name: str, dim: int) -> None:
    task = Task("backward_q", "sm_90", "bfloat16", dim, dim, 8192, 8192, uses_schedule(VARIANTS[name]))
    configs = [config for config in search_space(task).configs if config.backend == "hopper"]
    assert configs
    for config in configs:
        proven(gallery_module(name), name, Problem(1, 6, 3, 777, 901, dim, dim, "bfloat16"), config)


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_are_the_same_on_every_run(gallery_module: Callable[[str], ModuleType], name: str) -> None:
    call = make_inputs(VARIANTS[name], Problem(1, 8, 4, 2001, 2001, 128, 128, "bfloat16"), "cuda")
    leaves = [tensor.requires_grad_() for tensor in (call.q, call.k, call.v)]
    out = gallery_module(name).attention(*leaves, **call.keywords, deterministic=True)
    d_out = torch.randn_like(out)
    first = torch.autograd.grad(out, leaves, d_out, retain_graph=True)
    for _ in range(RUNS - 1):
        again = torch.autograd.grad(out, leaves, d_out, retain_graph=True)
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
