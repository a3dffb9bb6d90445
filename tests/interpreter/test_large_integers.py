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
