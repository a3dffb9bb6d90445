"""Sines, cosines and tangents, which kernels compute by functions of their own, and erf."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from flashgen.codegen import generate, load_module
from flashgen.spec import load

N = 256
CONFIG = "BM=64 BN=64 num_warps=4 num_stages=1"
# Of the sine and the cosine absolute, of the others relative.
BOUND = {"sin": 5e-7, "cos": 5e-7, "tan": 1e-6, "erf": 1e-6}


def arguments(name: str) -> torch.Tensor:
    random = torch.Generator().manual_seed(6)
    draw = torch.rand(N, generator=random, dtype=torch.float64) * 2 - 1
    if name == "erf":
        return (draw * 4).float()
    if name == "tan":
        return (draw * 1.55).float()
    # Of every size up to 2e4, whole numbers as positions are among them.
    sizes = torch.tensor([1e-3, 1.0, 3.2, 30.0, 1e3, 5e3, 1e4, 2e4], dtype=torch.float64)
    x = (draw * sizes.repeat(N // 8)).float()
    x[::3] = x[::3].round()
    x[:5] = torch.tensor([0.0, math.pi / 2, -math.pi, 2.0**14, 355.0])
    return x


@pytest.mark.parametrize("name", BOUND)
def test_it_is_the_function(tmp_path: Path, name: str) -> None:
    """Each query sees one key, so that its log-sum-exp is the score."""
    inputs = {"x": {"shape": ["kv_len"], "dtype": "float32"}}
    module = load_module(
        generate(
            load({"name": "waves", "inputs": inputs, "score": f"{name}(x[k]) + 0 * q", "mask": "k == q"}), tmp_path
        )
    )
    x = arguments(name)
    q = torch.zeros(1, 1, N, 16)
    _, lse = module.attention(q, q, q, x=x, return_lse=True, config=CONFIG)
    truth = torch.special.erf(x.double()) if name == "erf" else getattr(torch, name)(x.double())
    error = (lse[0, 0].double() - truth).abs()
    if name in ("tan", "erf"):
        error /= truth.abs().clamp_min(1e-30)
    assert float(error.max()) <= BOUND[name], f"{error.max()} at {x[error.argmax()]}"


def test_what_is_no_number_stays_none(tmp_path: Path) -> None:
    inputs = {"x": {"shape": ["kv_len"], "dtype": "float32"}}
    module = load_module(
        generate(load({"name": "waves", "inputs": inputs, "score": "sin(x[k])", "mask": "k == q"}), tmp_path)
    )
    x = torch.tensor([math.inf, math.nan, -math.inf, 1e30])
    q = torch.zeros(1, 1, 4, 16)
    _, lse = module.attention(q, q, q, x=x, return_lse=True, config="BM=16 BN=16 num_warps=4 num_stages=1")
    assert bool(lse[0, 0, :3].isnan().all()) and abs(float(lse[0, 0, 3])) <= 1
