"""The training example at a size for the CPU: right attention follows the exact curve, wrong attention strays."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

import flashgen
from flashgen.bench import peers
from flashgen.bench.candidates import sdpa_causal
from flashgen.errors import UsageError
from flashgen.problems.calls import make_inputs
from flashgen.problems.problem import Problem
from flashgen.spec import load
from flashgen.spec.variant import Variant

Attend = Callable[..., torch.Tensor]


def settings(gpt: ModuleType, **changes: Any) -> Any:
    small = {"layers": 2, "width": 32, "heads": 2, "context": 64, "batch": 2, "steps": 30, "dtype": torch.float32}
    return gpt.Settings(**{**small, "device": "cpu", **changes})


def with_attention(module: ModuleType, attention: Attend) -> Any:
    return SimpleNamespace(attention=attention, reference=module.reference, IDENTITY=module.IDENTITY)


def test_the_formula_in_another_order_of_sums_agrees(
    gpt: ModuleType, gallery_module: Callable[[str], ModuleType]
) -> None:
    module = gallery_module("causal")
    comparison = gpt.compare(
        with_attention(module, lambda q, k, v: module.reference(q.flip(-1), k.flip(-1), v)), settings(gpt)
    )
    assert comparison.agree, comparison
    losses = comparison.generated.losses
    assert losses[-10:].mean() < 0.95 * losses[:10].mean()
    assert "causal: the curves agree" in str(comparison)


class Shrunk(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 0.99


@pytest.mark.parametrize("mistake", ["a gradient a hundredth too small", "another mask", "NaN"])
def test_a_mistake_makes_the_curves_stray(
    gpt: ModuleType, gallery_module: Callable[[str], ModuleType], mistake: str
) -> None:
    causal, full = gallery_module("causal"), gallery_module("full")

    def wrong(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if mistake == "another mask":
            return full.reference(q, k, v)
        out = causal.reference(q, k, Shrunk.apply(v))
        return out * torch.nan if mistake == "NaN" else out

    comparison = gpt.compare(with_attention(causal, wrong), settings(gpt, steps=10))
    assert not comparison.agree and "DO NOT AGREE" in str(comparison)


# The example's specs, the window cut down to the context.
SPECS: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "alibi": {"causal": True, "bias": "alibi"},
    "local_softcap": {"softcap": 30.0, "window": {"left": 15, "right": 0}},
}


@pytest.mark.parametrize("name", SPECS)
def test_generated_attention_agrees(gpt: ModuleType, tmp_path: Path, name: str) -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("the interpreter is off because there is a GPU: start pytest with TRITON_INTERPRET=1")
    spec = {"name": name, **SPECS[name]}
    module = flashgen.build(spec, out=tmp_path, verify=False, compile=False, tune=False)
    comparison = gpt.compare(module, settings(gpt, context=40, batch=1, steps=6, warm_up=2))
    assert comparison.agree, comparison


@pytest.fixture
def cpu_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention without a compiler, torch's attention by whichever backend the CPU has."""

    def on_the_cpu(backend: str, variant: Variant, problem: Problem) -> Attend:
        causal = sdpa_causal(variant, problem)
        return lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(peers, "sdpa_function", on_the_cpu)


@pytest.mark.usefixtures("cpu_peers")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", SPECS)
def test_others_attend_as_the_model_does(gpt: ModuleType, tmp_path: Path, name: str) -> None:
    spec, problem = {"name": name, **SPECS[name]}, settings(gpt, context=40).problem
    module = flashgen.build(spec, out=tmp_path, verify=False, compile=False, tune=False)
    call = make_inputs(load(spec), problem)
    found = peers.peers(load(spec), problem, "cpu")
    assert list(found) == ["FlexAttention", *(["torch cuDNN"] if name == "causal" else [])]
    for attend in found.values():
        out, expected = attend(call.q, call.k, call.v), module.reference(call.q, call.k, call.v)
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


def test_others_train_for_a_few_steps_where_they_can(gpt: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def attend(*tensors: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return functional.scaled_dot_product_attention(*tensors)

    def broken(*tensors: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such backend\nmore")

    monkeypatch.setattr(gpt, "peers", lambda *_: {"a": broken, "b": attend})
    variant = load(SPECS["causal"] | {"name": "causal"})
    for steps, taken in ((3, 3), (gpt.TIMED + 1, gpt.TIMED)):
        calls = 0
        small = settings(gpt, steps=steps, layers=1, context=8)
        module = with_attention(SimpleNamespace(reference=attend, IDENTITY=None), attend)
        said = {name: cells for _, name, *cells in gpt.costs(module, variant, small)}
        assert calls == 3 * taken
        assert said.pop("a") == ["not here: RuntimeError: no such backend", ""]
        assert list(said) == ["generated", "eager", "b"] and all(float(step) > 0 for step, _ in said.values())
    with pytest.raises(RuntimeError, match="no such backend"):
        list(gpt.costs(with_attention(SimpleNamespace(reference=attend, IDENTITY=None), broken), variant, small))


def test_others_that_need_inputs_are_refused_by_name(gpt: ModuleType) -> None:
    spec = {"name": "packed", "inputs": {"doc": {"shape": ["kv_len"], "dtype": "int32"}}, "mask": "doc[q] == doc[k]"}
    with pytest.raises(UsageError, match="packed has the input 'doc'; expected inputs with defaults alone"):
        next(gpt.costs(SimpleNamespace(attention=None, reference=None), load(spec), settings(gpt)))


@pytest.mark.parametrize("gpu", [False, True])
def test_modules_name_their_specs_as_the_gallery_does(
    gpt: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], gpu: bool
) -> None:
    built: list[str] = []
    monkeypatch.chdir(repository)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(flashgen, "build", lambda spec, **_: built.append(spec))
    monkeypatch.setattr(gpt, "costs", lambda *_: [])
    monkeypatch.setattr(sys, "argv", ["gpt.py", "--costs"])
    if gpu:
        assert gpt.main() == 0
        assert built == ["variants/causal.yaml", "variants/alibi.yaml", "examples/local_softcap.yaml"]
    else:
        with pytest.raises(SystemExit, match="2"):
            gpt.main()
        assert "found no GPU" in capsys.readouterr().err and built == []
