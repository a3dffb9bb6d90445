"""Where scores may be huge, what a kernel computes of one is what another computes of it, to the bit."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from flashgen.codegen import generate, load_module
from flashgen.runtime.device.rounding import compiled_with
from flashgen.runtime.launching import replaced
from flashgen.runtime.registry import REGISTRY
from flashgen.spec import load

# What computes scores; all else reads what these have written.
SCORING = {"forward", "decode", "decode_paged", "backward_q", "backward_kv", "backward_inputs"}
FUSED, UNFUSED = {"enable_fp_fusion": True}, {"enable_fp_fusion": False}


def spec(score: str) -> dict[str, Any]:
    pad = {"shape": ["batch", "kv_len"], "dtype": "float32", "grad": True}
    return {"name": "padded", "inputs": {"pad": pad}, "score": score}


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    made = generate(load(spec("score + (1.0 - pad[b, k]) * -1e9")), tmp_path_factory.mktemp("rounded"))
    return load_module(made)


def test_each_kernel_that_computes_scores_asks_for_it(padded: ModuleType) -> None:
    found = [kernel for kernel in REGISTRY if hasattr(padded, kernel.function)]
    assert len(found) > 8
    for kernel in found:
        wanted = UNFUSED if kernel.family in SCORING else FUSED
        assert compiled_with(getattr(padded, kernel.function)) == wanted, kernel.name


def test_each_launch_of_one_has_it(padded: ModuleType) -> None:
    asked: dict[str, bool] = {}
    q, k, v = (torch.randn(1, 2, 40, 16, requires_grad=True) for _ in range(3))
    pad = torch.ones(1, 40, requires_grad=True)
    with replaced(lambda kernel, programs, given, rest: asked.update({kernel.__name__: rest.get("enable_fp_fusion")})):
        padded.attention(q, k, v, pad=pad).sum().backward()
        padded.attention(q[:, :, :1].detach(), k.detach(), v.detach(), pad=pad.detach())
    assert asked.pop("_delta")
    assert len(asked) > 3 and not any(asked.values()), asked


def test_where_scores_are_rounded_by_little_none_does(tmp_path: Path) -> None:
    module = load_module(generate(load({"name": "slanted", "score": "0.5 * score - 0.1 * (q - k)"}), tmp_path))
    found = [kernel.function for kernel in REGISTRY if hasattr(module, kernel.function)]
    assert all(compiled_with(getattr(module, function)) == FUSED for function in found)
