"""The Hopper kernel for dK and dV of wide heads on a GPU: every variant, head dims of both sides, and no race."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from gallery import VARIANTS

from flashgen.problems.calls import make_inputs
from flashgen.problems.problem import Problem
from flashgen.runtime import Config
from flashgen.runtime.kernels.kernel import Task
from flashgen.tuning.space import search_space
from flashgen.verify import Case, run_case
from flashgen.verify.cases import Backward

# Powers of two, sums of two, and one narrow side.
DIMS = ((192, 192), (192, 128), (160, 256), (136, 80), (256, 64), (40, 256))
# Lengths of queries and keys, both ways; grouped heads.
SHAPES = ((300, 300), (1, 200), (129, 1000), (700, 130))
RUNS = 20

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("on_hopper")]


def hopper_configs(head_dim: int, v_head_dim: int) -> list[Config]:
    task = Task("backward_kv", "sm_90", "bfloat16", head_dim, v_head_dim, 8192, 8192)
    return [config for config in search_space(task).configs if config.backend == "hopper"]


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant(gallery_module: Callable[[str], ModuleType], name: str) -> None:
    (config,) = hopper_configs(256, 256)
    for q_len, kv_len in SHAPES:
        case = Case("wide", Problem(2, 4, 2, q_len, kv_len, 256, 256, "bfloat16"), backward=Backward(kv=config))
        result = run_case(gallery_module(name), VARIANTS[name], case, "cuda")
        assert result.ok, f"{q_len} x {kv_len}: {result}"


@pytest.mark.parametrize("name", ["causal", "softcap", "document"])
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_every_head_dim_and_config(
    gallery_module: Callable[[str], ModuleType], dims: tuple[int, int], name: str
) -> None:
    dtype = "float16" if dims[0] == 160 else "bfloat16"
    for config in hopper_configs(*dims):
        for q_len, kv_len in SHAPES:
            problem = Problem(1, 6, 3, q_len, kv_len, *dims, dtype)
            case = Case("wide", problem, layout="bshd", backward=Backward("transposed", kv=config))
            result = run_case(gallery_module(name), VARIANTS[name], case, "cuda")
            assert result.ok, f"{config}, {q_len} x {kv_len}: {result}"


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dims", [(256, 256), (192, 128)], ids=str)
def test_gradients_are_the_same_on_every_run(
    gallery_module: Callable[[str], ModuleType], name: str, dims: tuple[int, int]
) -> None:
    call = make_inputs(VARIANTS[name], Problem(1, 8, 4, 2001, 2001, *dims, "bfloat16"), "cuda")
    leaves = [tensor.requires_grad_() for tensor in (call.q, call.k, call.v)]
    out = gallery_module(name).attention(*leaves, **call.keywords)
    d_out = torch.randn_like(out)
    first = torch.autograd.grad(out, leaves, d_out, retain_graph=True)
    for _ in range(RUNS - 1):
        again = torch.autograd.grad(out, leaves, d_out, retain_graph=True)
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
