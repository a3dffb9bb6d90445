"""Specs that read something of a batch, for the proof of packed and paged sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flashgen.codegen import generate, load_module
from flashgen.problems.elements import has_elements
from flashgen.spec import load
from flashgen.verify.cases import cases_for, gradient_cases_for
from flashgen.verify.paged_cases import paged_cases_for
from flashgen.verify.report import CaseResult
from flashgen.verify.run import run_case

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
    "clusters of keys for each query": {
        "align": "top_left",
        "inputs": {
            "t": {"shape": ["batch", "heads", "q_len", "(kv_len + 4) // 5"], "dtype": "float32", "grad": True},
            "seen": {"shape": ["batch", "(kv_len + 4) // 5", "q_len"], "dtype": "bool"},
        },
        "score": "score + t[b, h, q, k // 5]",
        "mask": "seen[b, k // 5, q] | (k == 0)",
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


def proven(spec: dict[str, Any], folder: Path, device: str) -> list[CaseResult]:
    """What the quick level says of the packed and paged forms of a spec's kernels, in their own configs on a GPU."""
    variant = load({"name": "served", **spec})
    module = load_module(generate(variant, folder))
    gpu = device != "cpu"
    calls = (*cases_for(variant, "quick", gpu, False), *gradient_cases_for(variant, "quick", gpu, False))
    cases = [*(case for case in calls if case.lengths), *paged_cases_for(variant, "quick")]
    return [run_case(module, variant, case, device) for case in cases if has_elements(variant, case.problem)]
