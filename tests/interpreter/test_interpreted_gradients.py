"""Gradients of every gallery variant on every case of the quick level and some of the full, and of learned inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from gallery import VARIANTS
from gallery_cases import each_with_some

from flashgen.codegen import generate, load_module, uses_schedule
from flashgen.spec import load
from flashgen.verify import Case, gradient_cases_for, run_case


@each_with_some(gradient_cases_for)
def test_kernels_compute_the_gradients(gallery_module: Callable[[str], ModuleType], name: str, case: Case) -> None:
    result = run_case(gallery_module(name), VARIANTS[name], case, "cpu")
    assert result.ok, str(result)


def spec(score: str, *shape: str, others: dict[str, Any] | None = None, **rest: Any) -> dict[str, Any]:
    """A spec whose score learns an input t of this shape."""
    t = {"t": {"shape": [*shape], "dtype": "float32", "grad": True}} if shape else {}
    return {"name": "mine", "inputs": {**(others or {}), **t}, "score": score, **rest}


DOC = {"doc": {"shape": ["batch", "kv_len"], "dtype": "int32"}}
GATE = {"s": {"shape": ["heads"], "dtype": "bfloat16", "grad": True}}
NEAR = "t[h, clamp(q - k, 0, 4)]"
SPECS = {
    "a bias for each pair": spec("score + t[b, h, q, k]", "batch", "heads", "q_len", "kv_len", align="top_left"),
    "a bias for all heads": spec("score + t[q, k]", "q_len", "kv_len", align="top_left"),
    "a bias of keys": spec("score + t[b, k]", "batch", "kv_len", causal=True),
    "a factor of queries": spec("score * t[min(max(q, 0), kv_len - 1)]", "kv_len"),
    "a factor of keys": spec("score * t[h, k]", "heads", "kv_len", window={"left": 20, "right": 3}),
    "a factor of each head": spec("score * t[h] + abs(t[h])", "heads"),
    "a factor of each KV head": spec("score * (1 + t[kv_h])", "kv_heads", causal=True),
    "one number": spec("tanh(score * t[0]) * 3", "1"),
    "a table of segments": spec(
        "score + t[h, doc[b, q] % 8, doc[b, k] % 8]", "heads", "8", "8", others=DOC, mask="q >= 0"
    ),
    "a table under a softcap": spec("score + " + NEAR, "heads", "5", softcap=4.0, causal=True),
    "two inputs, one of 16 bits": spec(f"score + {NEAR} * s[h]", "heads", "5", others=GATE, causal=True),
    "a table that a branch hides": spec(f"score + {NEAR} if q - k < 5 else score", "heads", "5", causal=True),
    "a slope with a sink": spec("score - t[h] * abs(q - k)", "heads", sink="learned", causal=True),
    "an infinite derivative of what is hidden": spec("score * log(q - k + 1)", causal=True),
    "a derivative that changes its sign": spec("abs(score) - max(score, 0.5) * 2"),
    "a tanh along a row": spec("score + tanh(t[h, q])", "heads", "kv_len", align="top_left", causal=True),
    "an index that reads the score": spec("score + t[h, floor(score) + 4]", "heads", "9"),
    "a score that is not read": spec("t[h, clamp(q - k, -32, 32) + 32]", "heads", "65"),
}


@pytest.mark.parametrize("name", SPECS)
def test_any_spec_has_gradients(tmp_path: Path, name: str) -> None:
    variant = load(SPECS[name])
    module = load_module(generate(variant, tmp_path))
    for case in gradient_cases_for(variant, "quick", gpu=False, scheduled=uses_schedule(variant))[:3:2]:
        result = run_case(module, variant, case, "cpu")
        assert result.ok, f"{name}: {result}"
