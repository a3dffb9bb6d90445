"""The proof of packed and paged sequences passes for right kernels, whatever their formula reads of a batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flashgen.codegen import generate, load_module
from flashgen.problems.calls import make_inputs
from flashgen.problems.elements import has_elements
from flashgen.problems.problem import Problem
from flashgen.spec import load
from flashgen.verify.cases import cases_for, gradient_cases_for
from flashgen.verify.paged_cases import paged_cases_for
from flashgen.verify.run import run_case
from flashgen.verify.slopes import counted_apart

PADDING = {"pad": {"shape": ["batch", "kv_len"], "dtype": "bool"}}
DOCUMENTS = {
    "doc": {"shape": ["batch", "kv_len"], "dtype": "int32"},
    "own": {"shape": ["batch", "q_len"], "dtype": "int32"},
}
SPECS: dict[str, dict[str, Any]] = {
    "the sequence": {"score": "score + 0.1 * b"},
    "how many there are": {"score": "score + 0.1 * batch"},
    "a mask of some sequences": {"mask": "(k <= q) | (b % 2 == 0)"},
    "windows of several images": {
        "inputs": {"bias": {"shape": ["windows", "heads"], "dtype": "float32", "grad": True}},
        "score": "score + bias[b % windows, h] * (q % 3)",
    },
    "the first sequence's": {
        "inputs": {"t": {"shape": ["batch", "heads"], "dtype": "float32", "grad": True}},
        "score": "score + t[0, h] * (k % 2)",
    },
    "counted from the last": {
        "inputs": {"t": {"shape": ["batch", "heads"], "dtype": "float32"}},
        "score": "score + t[batch - 1 - b, h]",
    },
    "slopes and padding": {"causal": True, "bias": "alibi", "inputs": PADDING, "mask": "pad[b, k]"},
    "slopes and documents": {"causal": True, "bias": "alibi", "inputs": DOCUMENTS, "mask": "own[b, q] == doc[b, k]"},
    "slopes of each sequence": {
        "causal": True,
        "inputs": {"s": {"shape": ["batch", "heads"], "dtype": "float32"}},
        "score": "score - s[b, h] * (q - k)",
    },
    "a sink and a bias of queries": {
        "sink": "learned",
        "inputs": {"t": {"shape": ["batch", "q_len"], "dtype": "float32"}},
        "score": "score + t[b, q]",
    },
    "keys of the first sequence": {
        "inputs": {"t": {"shape": ["batch", "kv_len"], "dtype": "float32", "grad": True}},
        "score": "score + t[0, k]",
    },
    "queries of the first sequence": {
        "inputs": {"t": {"shape": ["batch", "q_len"], "dtype": "float32"}},
        "score": "score + t[0, q] * (k % 3)",
    },
    "sequences along the last dimension": {
        "align": "top_left",
        "inputs": {"t": {"shape": ["q_len", 3, "batch"], "dtype": "float32", "grad": True}},
        "score": "score + t[q, 1, b] * (k % 3)",
    },
    "a sequence twice": {
        "inputs": {"t": {"shape": ["batch", "batch", "kv_len"], "dtype": "float32", "grad": True}},
        "score": "score + t[b, b, k]",
    },
    "names of the proof's own": {
        "inputs": {
            "dropout_seed": {"shape": ["heads"], "dtype": "float32"},
            "self": {"shape": ["heads"], "dtype": "float32"},
        },
        "score": "score * dropout_seed[h] + self[h] * (k % 2)",
    },
    "dropout by the sequence": {"score": "score + 0.1 * b", "dropout": 0.1},
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_right_kernels_pass(spec: dict[str, Any], tmp_path: Path) -> None:
    variant = load({"name": "served", **spec})
    module = load_module(generate(variant, tmp_path))
    packed = [
        case
        for case in (*cases_for(variant, "quick", False, False), *gradient_cases_for(variant, "quick", False, False))
        if case.lengths
    ]
    cases = [*packed, *paged_cases_for(variant, "quick")]
    results = [run_case(module, variant, case, "cpu") for case in cases if has_elements(variant, case.problem)]
    assert len(results) >= 5
    assert [f"{each.name}: {each.detail}" for each in results if not each.ok] == []


def test_slopes_are_those_of_the_sequence_that_is_asked_for() -> None:
    variant = load({"name": "sloped", **SPECS["slopes of each sequence"]})
    call = make_inputs(variant, Problem(2, 4, 2, 20, 30, 16, 16, "float32"))
    whole = counted_apart(variant, call)
    assert torch.equal(counted_apart(variant, replace(call, q=call.q[1:]), 1, 2), whole[1:])
