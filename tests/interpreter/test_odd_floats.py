"""NaN and infinity among what a caller passes: a kernel makes of them what the eager formula does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flashgen.codegen import generate, load_module
from flashgen.spec import load

INPUTS = {"x": {"shape": ["batch", "kv_len"], "dtype": "float32"}}
SPECS = {
    "the greater": {"mask": "max(x[b, k], 0.0) < 0.5"},
    "the lesser": {"mask": "not (min(x[b, k], 1.0) > 0.5)"},
    "of two inputs": {"mask": "(max(x[b, k], x[b, q]) < 1.0) | (k == 0)"},
    "between bounds": {"mask": "clamp(x[b, k], -1.0, 1.0) <= 0.5"},
    "a score": {"score": "where(max(x[b, k], 0.0) >= 0, score, 0.5 * score)"},
}


@pytest.mark.parametrize("q_len", [1, 20])
@pytest.mark.parametrize("name", SPECS)
def test_minima_and_maxima_of_nan_are_nan(name: str, q_len: int, tmp_path: Path) -> None:
    module = load_module(generate(load({"name": "odd", "inputs": INPUTS, **SPECS[name]}), tmp_path))
    random = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 2, n, 16, generator=random) for n in (q_len, 37, 37))
    x = torch.randn(2, 37, generator=random)
    x[:, ::5], x[:, ::7], x[:, ::11] = float("nan"), float("inf"), -float("inf")
    out, lse = module.attention(q, k, v, x=x, return_lse=True)
    expected, expected_lse = module.reference(q, k, v, x=x, return_lse=True)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, expected_lse)
