"""By what names callers pass inputs and runtime params: those of the spec, where the function has none of its own."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from flashgen import build
from flashgen.runtime.serving import store_kv
from flashgen.spec import load
from flashgen.spec.keywords import keyword_names, keywords_of
from flashgen.spec.names import ARGUMENTS

FUNCTIONS = ("attention", "attention_varlen", "attention_paged")
# As a spec of padded rows would call its lengths; and others that functions for packed sequences have arguments of.
SPEC = {
    "name": "mine",
    "inputs": {
        "seq_lens": {"shape": ["batch"], "dtype": "int32"},
        "out": {"shape": ["heads"], "dtype": "float32", "grad": True},
        "out_": {"shape": ["batch", "kv_len"], "dtype": "float32"},
        "cu_seqlens_q": {"shape": ["batch", "q_len"], "dtype": "float32"},
    },
    "params": {"max_seqlen_k": {"value": 3, "runtime": True}},
    "mask": "k < seq_lens[b] - max_seqlen_k",
    "score": "score + out[h] + out_[b, k] + cu_seqlens_q[b, q]",
}


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return build(SPEC, out=tmp_path_factory.mktemp("out"), verify=False, compile=False, tune=False)


def test_names_give_way_to_those_of_a_function() -> None:
    variant = load(SPEC)
    own = {name: name for name in ("seq_lens", "out", "out_", "cu_seqlens_q", "max_seqlen_k")}
    assert keyword_names(variant, "attention") == own
    ends = {"cu_seqlens_q": "cu_seqlens_q_", "max_seqlen_k": "max_seqlen_k_"}
    assert keyword_names(variant, "attention_varlen") == {**own, **ends}
    assert keyword_names(variant, "attention_paged") == {**own, **ends, "seq_lens": "seq_lens_", "out": "out__"}
    assert keywords_of(variant, "attention_paged", {"out": 1, "scale": 2}) == {"out__": 1, "scale": 2}


def test_arguments_are_those_of_generated_functions(tmp_path: Path) -> None:
    table = {"document": {"shape": ["batch", "kv_len"], "dtype": "int32"}}
    spec = {"name": "mine", "inputs": table, "mask": "document[b, q] == document[b, k]"}
    made = build(spec, out=tmp_path, verify=False, compile=False, tune=False)
    for function in FUNCTIONS:
        taken = ARGUMENTS[function] - ({"v", "k", "return_max", "backward_config", "deterministic"}
                                       if function == "attention_paged" else set())  # fmt: skip
        assert inspect.signature(getattr(made, function)).parameters.keys() - {"document"} == taken


def test_the_docstring_says_the_name(mine: ModuleType) -> None:
    assert "\n    out: float32 [heads]." in str(inspect.getdoc(mine.attention)).replace("\n", "\n    ")
    assert "seq_lens_: int32 [batch]." in mine.attention_paged.__doc__
    assert "cu_seqlens_q_: float32 [total_q]." in mine.attention_varlen.__doc__


def test_packed_and_paged_calls_take_them(mine: ModuleType) -> None:
    torch.manual_seed(0)
    batch, q_len, kv_len = 2, 3, 16
    q, k, v = (torch.randn(batch, 2, length, 16) for length in (q_len, kv_len, kv_len))
    out = torch.randn(2, requires_grad=True)
    own: dict[str, Any] = {
        "seq_lens": torch.tensor([9, 19], dtype=torch.int32),
        "out": out,
        "out_": torch.randn(batch, kv_len),
        "cu_seqlens_q": torch.randn(batch, q_len),
        "max_seqlen_k": 2,
    }
    expected = mine.attention(q, k, v, **own)
    (gradient,) = torch.autograd.grad(expected.sum(), out, retain_graph=True)

    def packed(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.transpose(1, 2).flatten(0, 1)

    q_ends, k_ends = (torch.arange(0, (batch + 1) * each, each, dtype=torch.int32) for each in (q_len, kv_len))
    variant = load(SPEC)
    given = {**own, "out_": own["out_"].flatten(), "cu_seqlens_q": own["cu_seqlens_q"].flatten()}
    packed_own = keywords_of(variant, "attention_varlen", given)
    found = mine.attention_varlen(packed(q), packed(k), packed(v), q_ends, k_ends, q_len, kv_len, **packed_own)
    torch.testing.assert_close(found, packed(expected))
    torch.testing.assert_close(torch.autograd.grad(found.sum(), out)[0], gradient)

    k_cache, v_cache = (torch.zeros(batch, kv_len, 2, 16) for _ in range(2))
    store_kv(packed(k), packed(v), k_cache, v_cache, torch.arange(batch * kv_len))
    told = {"cu_seqlens_q": q_ends, "max_seqlen_q": q_len, **keywords_of(variant, "attention_paged", {
        **given, "out_": own["out_"], "out": out.detach(),
    })}  # fmt: skip
    lengths = torch.full((batch,), kv_len, dtype=torch.int32)
    table = torch.arange(batch, dtype=torch.int32)[:, None]
    found = mine.attention_paged(packed(q), k_cache, v_cache, table, lengths, **told)
    torch.testing.assert_close(found, packed(expected))
