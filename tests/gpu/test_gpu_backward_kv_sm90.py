"""The Hopper kernel for dK, dV and dQ on a GPU: every variant, every kind of config, and no race."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest
import torch
from gallery import VARIANTS

from flashgen import build
from flashgen.codegen import scheduled_kernels
from flashgen.problems.calls import make_inputs
from flashgen.problems.problem import Problem
from flashgen.runtime import Config
from flashgen.runtime.kernels.kernel import Task
from flashgen.spec import load
from flashgen.tuning.space import search_space
from flashgen.verify import Case, run_case
from flashgen.verify.cases import Backward

DIMS = ((64, 64), (128, 128), (96, 80), (128, 64), (40, 128))
# Lengths of queries and keys, both ways; grouped heads.
SHAPES = ((300, 300), (1, 200), (129, 1000), (700, 130))
RUNS = 20

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("on_hopper")]


def hopper_configs(head_dim: int, v_head_dim: int, scheduled: bool = False) -> list[Config]:
    task = Task("backward_kv", "sm_90", "bfloat16", head_dim, v_head_dim, 8192, 8192, scheduled)
    return [config for config in search_space(task).configs if config.backend == "hopper"]


@pytest.mark.parametrize(("name", "dims"), list(product(VARIANTS, DIMS)), ids=str)
def test_every_variant_and_head_dim(
    gallery_module: Callable[[str], ModuleType], name: str, dims: tuple[int, int]
) -> None:
    dtype = "float16" if dims[0] == 96 else "bfloat16"
    config = next(c for c in hopper_configs(*dims) if c.fuse_dq == 1)
    for q_len, kv_len in SHAPES:
        case = Case("hopper", Problem(2, 4, 2, q_len, kv_len, *dims, dtype), backward=Backward(kv=config))
        result = run_case(gallery_module(name), VARIANTS[name], case, "cuda")
        assert result.ok, f"{q_len} x {kv_len}: {result}"


@pytest.mark.parametrize(("name", "dim"), list(product(("full", "alibi", "document"), (64, 128))), ids=str)
def test_every_config(gallery_module: Callable[[str], ModuleType], name: str, dim: int) -> None:
    for config in hopper_configs(dim, dim, "backward_kv" in scheduled_kernels(VARIANTS[name])):
        case = Case("config", Problem(1, 6, 3, 777, 901, dim, dim, "bfloat16"), backward=Backward(kv=config))
        result = run_case(gallery_module(name), VARIANTS[name], case, "cuda")
        assert result.ok, f"{config}: {result}"


@pytest.mark.parametrize("name", VARIANTS)
def test_dk_and_dv_are_the_same_on_every_run(gallery_module: Callable[[str], ModuleType], name: str) -> None:
    call = make_inputs(VARIANTS[name], Problem(1, 8, 4, 2001, 2001, 128, 128, "bfloat16"), "cuda")
    leaves = [tensor.requires_grad_() for tensor in (call.q, call.k, call.v)]
    out = gallery_module(name).attention(*leaves, **call.keywords)
    d_out = torch.randn_like(out)
    _, *first = torch.autograd.grad(out, leaves, d_out, retain_graph=True)
    for _ in range(RUNS - 1):
        _, *again = torch.autograd.grad(out, leaves, d_out, retain_graph=True)
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_repeated_keys_and_strides_of_no_use_read_as_copies_do(gallery_module: Callable[[str], ModuleType]) -> None:
    attention = gallery_module("causal").attention
    q, d_out = (torch.randn(1, 4, 150, 64, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    k = q[:, :1].expand(1, 4, 150, 64)
    v = torch.randn(150 * 4 * 64, dtype=torch.bfloat16, device="cuda").as_strided((1, 4, 150, 64), (3, 64, 256, 1))

    def gradients(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        return torch.autograd.grad(attention(*leaves, deterministic=True), leaves, d_out)

    copies = (tensor.clone(memory_format=torch.contiguous_format) for tensor in (q, k, v))
    for one, other in zip(gradients(q, k, v), gradients(*copies), strict=True):
        assert torch.equal(one, other)


RELATIVE = {
    "name": "relative_causal",
    "causal": True,
    "params": {"W": 64},
    "inputs": {"rel": {"shape": ["heads", "2*W + 1"], "dtype": "float32", "grad": True}},
    "score": "score + rel[h, clamp(q - k, -W, W) + W]",
}


@pytest.mark.parametrize("dim", [64, 128])
def test_sums_of_tiles_and_the_rest_make_the_gradient_of_a_learned_input(dim: int, tmp_path: Path) -> None:
    module = build(RELATIVE, out=tmp_path, verify=False, compile=False, tune=False)
    config = next(c for c in hopper_configs(dim, dim) if c.fuse_dq == 1)
    for deterministic in (False, True):
        backward = Backward(kv=config, deterministic=deterministic)
        case = Case("learned", Problem(1, 8, 4, 700, 901, dim, dim, "bfloat16"), backward=backward)
        result = run_case(module, load(RELATIVE), case, "cuda")
        assert result.ok, str(result)
