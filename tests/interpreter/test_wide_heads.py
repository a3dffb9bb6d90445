"""Head dimensions beyond 256, in the built-in configs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flashgen.codegen import generate, load_module
from flashgen.spec import load

SPECS: dict[str, dict[str, Any]] = {
    "closed form": {"causal": True, "bias": "alibi"},
    "schedule": {"mask": "(q - k) % 3 != 1"},
}
# Gradients too, each relative to its largest.
ERROR = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize(
    ("head_dim", "v_head_dim", "dtype"),
    [(512, 512, torch.bfloat16), (320, 64, torch.float32), (64, 257, torch.float32)],
)
def test_they_run(tmp_path: Path, name: str, head_dim: int, v_head_dim: int, dtype: torch.dtype) -> None:
    module = load_module(generate(load({"name": "wide", **SPECS[name]}), tmp_path))
    random = torch.Generator().manual_seed(9)
    shapes = [(1, 2, 37, head_dim), (1, 1, 37, head_dim), (1, 1, 37, v_head_dim)]
    leaves = [torch.randn(shape, generator=random).to(dtype).requires_grad_() for shape in shapes]
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    out, expected = module.attention(*leaves), module.reference(*wide)
    d_out = torch.randn(out.shape, generator=random).to(dtype)
    found = [out, *torch.autograd.grad(out, leaves, d_out)]
    truth = [expected, *torch.autograd.grad(expected, wide, d_out.double())]
    for mine, right in zip(found, truth, strict=True):
        assert float((mine.double() - right).abs().max() / right.abs().max()) <= ERROR[dtype]
