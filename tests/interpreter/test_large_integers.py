"""Integers of an input at the ends of int32: kernels make of them what Python does, and nothing wraps."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from flashgen.codegen import generate, load_module
from flashgen.spec import load

ENDS = [-(2**31), -(2**31) + 1, -(2**30), -7, -1, 0, 1, 5, 2**30, 2**31 - 1]
# Each beside some other one, of which none is 0.
OTHERS = [-1, 2, -3, 31, -(2**31), 2**31 - 1, 7, -1, 3, -2]
CASES: dict[str, Callable[[int, int], int]] = {
    "abs(t)": lambda t, u: abs(t),
    "-t": lambda t, u: -t,
    "~t": lambda t, u: ~t,
    "t + t": lambda t, u: t + t,
    "t - u * 3": lambda t, u: t - u * 3,
    "t * u": lambda t, u: t * u,
    "t ** 2": lambda t, u: t**2,
    "t // -1": lambda t, u: t // -1,
    "t // u": lambda t, u: t // u,
    "t % u": lambda t, u: t % u,
    "(t - 1) // 2": lambda t, u: (t - 1) // 2,
    "(t * 4) // 4": lambda t, u: t,
    "(t * 4) // 4294967296": lambda t, u: t * 4 // 2**32,
    "t // 2147483648": lambda t, u: t // 2**31,
    "(t * 4) % 4294967296": lambda t, u: t * 4 % 2**32,
    "t // 3": lambda t, u: t // 3,
    "t % 3": lambda t, u: t % 3,
    "t << 20": lambda t, u: t << 20,
    "t >> 40": lambda t, u: t >> 40,
    "(t << 20) >> (u & 15)": lambda t, u: (t << 20) >> (u & 15),
    "t << (u & 31)": lambda t, u: t << (u & 31),
    "floor(t * 4.0)": lambda t, u: math.floor(torch.tensor(t).float().item() * 4.0),
    "min(-t, -u)": lambda t, u: min(-t, -u),
    "sum(i, 3, t + i)": lambda t, u: 3 * t + 3,
    "sum(i, 2, abs(t) * i)": lambda t, u: abs(t),
}


@pytest.mark.parametrize("expression", CASES)
def test_they_are_those_of_python(tmp_path: Path, expression: str) -> None:
    values = list(zip(ENDS, OTHERS, strict=True))
    wanted = torch.tensor([[CASES[expression](t, u) for t, u in values]])
    inputs = {name: {"shape": ["batch", "kv_len"], "dtype": "int32"} for name in "tu"}
    inputs["wanted"] = {"shape": ["batch", "kv_len"], "dtype": "int64"}
    lets = {name: f"{name}s[b, k]" for name in "tu"}
    spec = {
        "name": "ends",
        "inputs": {f"{name}s" if name in lets else name: tensor for name, tensor in inputs.items()},
        "let": lets,
        "mask": f"({expression} == wanted[b, k]) & (u != 0)",
    }
    module = load_module(generate(load(spec), tmp_path))
    ts, us = torch.tensor(values, dtype=torch.int32).T.contiguous()[:, None]
    q = torch.zeros(1, 1, 3, 16)
    k = v = torch.zeros(1, 1, len(values), 16)
    _, lse = module.attention(q, k, v, ts=ts, us=us, wanted=wanted, return_lse=True)
    # Of scores of 0 it counts the keys that are seen.
    assert lse.exp().round().tolist() == [[[len(values)] * 3]]


DIFFERENCES = {
    "(k + t[h]) - (q + u[h])": lambda q, k, t, u: (k + t) - (q + u),
    "abs((q + u[h]) - (k + t[h]))": lambda q, k, t, u: abs((q + u) - (k + t)),
    "max(k + t[h], q + t[h]) - (u[h] + 3 * q)": lambda q, k, t, u: max(k + t, q + t) - (u + 3 * q),
    "min(k - q, 5) + (t[h] - u[h])": lambda q, k, t, u: min(k - q, 5) + (t - u),
}


@pytest.mark.parametrize("expression", DIFFERENCES)
def test_small_differences_of_large_integers_are_exact_pair_by_pair(tmp_path: Path, expression: str) -> None:
    """float32 has every 32nd integer there."""
    inputs = {name: {"shape": ["heads"], "dtype": "int32"} for name in "tu"}
    module = load_module(
        generate(load({"name": "far", "inputs": inputs, "score": f"score + 0.25 * ({expression})"}), tmp_path)
    )
    ts, us = torch.tensor([[2**30 - 3, 2**29 + 1], [2**30 + 4, 2**29 - 6]], dtype=torch.int32)
    q, k = torch.zeros(1, 2, 3, 16), torch.zeros(1, 2, 7, 16)
    # Scores of 0 beside the expression's: what is seen of it is its softmax.
    v = torch.eye(7, 16).expand(1, 2, 7, 16)
    out, lse = module.attention(q, k, v, t=ts, u=us, return_lse=True)
    wanted = torch.tensor([
        [[0.25 * DIFFERENCES[expression](i + 4, j, int(t), int(u)) for j in range(7)] for i in range(3)]
        for t, u in zip(ts, us, strict=True)
    ])  # fmt: skip
    torch.testing.assert_close(out[0, :, :, :7], wanted.softmax(-1), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(lse[0], wanted.logsumexp(-1), rtol=1e-4, atol=1e-5)
