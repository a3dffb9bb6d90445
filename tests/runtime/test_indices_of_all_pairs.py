"""An index that is one for all pairs: without pairs nothing is read, and a trace looks at no value of it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from flashgen.codegen import generate, load_module
from flashgen.spec import load

SIZES = {"heads": 4, "q_len": 5, "kv_len": 7, "n": 3, "m": 2}
KEYS = {"shape": ["kv_len"], "dtype": "float32", "grad": True}
PLACE, PLACES = {"shape": [], "dtype": "int32"}, {"shape": ["n"], "dtype": "int32"}
TABLE = {"shape": ["heads", 9], "dtype": "float32", "grad": True}
SPECS: dict[str, dict[str, Any]] = {
    "a_number": {"inputs": {"keys": KEYS}, "score": "score + keys[0]"},
    "a_size": {"inputs": {"keys": KEYS}, "score": "score + keys[kv_len - 1]", "mask": "k <= q"},
    "a_tensor": {"inputs": {"at": PLACE, "keys": KEYS}, "score": "score + keys[at]"},
    "a_condition": {
        "inputs": {"at": {**PLACE, "dtype": "bool"}, "keys": KEYS},
        "score": "score * keys[where(at, 1, 0)]",
    },
    "an_element": {"inputs": {"at": PLACES, "table": TABLE}, "score": "score + table[h, clamp(at[0], 0, 8)]"},
    "a_counter": {
        "inputs": {"at": PLACES, "keys": {**KEYS, "grad": False}},
        "score": "score + sum(i, n, keys[at[i]] * keys[i])",
    },
    "a_sum": {"inputs": {"at": PLACES, "keys": KEYS}, "score": "score * keys[sum(i, n, at[i])]"},
    "no_table": {
        "inputs": {"at": {**PLACES, "shape": ["m"]}, "table": {"shape": ["n", "kv_len"], "dtype": "float32"}},
        "score": "score + table[at[1], k]",
    },
}


@pytest.fixture(params=SPECS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def module(name: str, tmp_path: Path) -> ModuleType:
    return load_module(generate(load({"name": f"{name}_of_all", **SPECS[name]}), tmp_path))


def arguments(name: str, **sizes: int) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    sizes = SIZES | sizes
    generator = torch.Generator().manual_seed(0)
    lengths = sizes["q_len"], sizes["kv_len"], sizes["kv_len"]
    inputs = {
        name: torch.ones([sizes.get(d, d) for d in each["shape"]], dtype=getattr(torch, each["dtype"]))
        for name, each in SPECS[name]["inputs"].items()
    }
    return [torch.randn(2, 4, length, 8, generator=generator) for length in lengths], inputs


@pytest.mark.parametrize("sizes", [{"kv_len": 0}, {"q_len": 0, "kv_len": 0}, {"kv_len": 0, "n": 0}])
def test_without_pairs_nothing_is_read(name: str, module: ModuleType, sizes: dict[str, int]) -> None:
    qkv, inputs = arguments(name, **sizes)
    learned = [inputs[key].requires_grad_() for key, each in SPECS[name]["inputs"].items() if each.get("grad")]
    out = module.reference(*qkv, **inputs)
    assert out.shape == qkv[0].shape
    assert not out.any()
    if learned:
        assert not any(gradient.any() for gradient in torch.autograd.grad(out.sum(), learned))


def test_a_trace_looks_at_no_value(name: str, module: ModuleType) -> None:
    qkv, inputs = arguments(name)
    expected = module.reference(*qkv, **inputs)
    traced = torch.compile(module.reference, fullgraph=True, backend="eager")
    torch.testing.assert_close(traced(*qkv, **inputs), expected)
    meta = module.reference(*(each.to("meta") for each in qkv), **{k: each.to("meta") for k, each in inputs.items()})
    assert meta.shape == expected.shape
    with FakeTensorMode() as mode:
        fakes = {k: mode.from_tensor(each) for k, each in inputs.items()}
        assert module.reference(*map(mode.from_tensor, qkv), **fakes).shape == expected.shape


def test_a_number_within_a_whole_dimension_stays_one(tmp_path: Path) -> None:
    table = {"shape": ["heads", 9], "dtype": "float32"}
    path = generate(load({"name": "plain_index", "inputs": {"table": table}, "score": "score + table[h, 0]"}), tmp_path)
    assert "score + table[h, 0].to(score.dtype)" in (path / "__init__.py").read_text("utf-8")
