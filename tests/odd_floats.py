"""NaN and infinity among what a caller passes: specs that read them, and what a kernel makes of them."""

from __future__ import annotations

from types import ModuleType

import torch

INPUTS = {"x": {"shape": ["batch", "kv_len"], "dtype": "float32"}}
SPECS = {
    "the greater": {"mask": "max(x[b, k], 0.0) < 0.5"},
    "the lesser": {"mask": "not (min(x[b, k], 1.0) > 0.5)"},
    "of two inputs": {"mask": "(max(x[b, k], x[b, q]) < 1.0) | (k == 0)"},
    "between bounds": {"mask": "clamp(x[b, k], -1.0, 1.0) <= 0.5"},
    "compared": {"mask": "x[b, k] < x[b, q]"},
    "equal": {"mask": "(x[b, k] == x[b, q]) | (k == 0)"},
    "a product": {"mask": "x[b, k] * x[b, q] > -1.0"},
    "rounded down": {"mask": "floor(x[b, k]) < 1"},
    "rounded up": {"mask": "ceil(x[b, k]) < 1"},
    "a limit": {"mask": "k <= floor(8 * x[b, q])"},
    "a score": {"score": "where(max(x[b, k], 0.0) >= 0, score, 0.5 * score)"},
}


def check_odd_floats(module: ModuleType, q_len: int, kv_len: int, dtype: torch.dtype, device: str) -> None:
    """Hold attention of a variant that reads such inputs against its formula in float64."""
    random = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 2, n, 16, generator=random).to(device, dtype) for n in (q_len, kv_len, kv_len))
    x = torch.randn(2, kv_len, generator=random)
    # Whole tiles without any, with some and of nothing else, and each kind beside each other.
    half = x[:, : kv_len // 2]
    half[:, ::5], half[:, ::7], half[:, ::11] = float("nan"), float("inf"), -float("inf")
    x[:, -kv_len // 4 :] = float("nan")
    x = x.to(device)
    out, lse = module.attention(q, k, v, x=x, return_lse=True)
    expected, expected_lse = module.reference(q.double(), k.double(), v.double(), x=x, return_lse=True)
    # The weights and the result are rounded to the dtype, the scores are sums of 16 products in float32.
    rounding = torch.finfo(dtype).eps * v.abs().max().item() + 1e-5
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=rounding)
    torch.testing.assert_close(lse.double(), expected_lse.double(), rtol=1e-5, atol=1e-4)
