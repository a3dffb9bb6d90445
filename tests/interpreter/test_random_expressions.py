"""Random scores and masks: kernel, reference and a direct evaluation in Python, pair by pair, agree."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from expression_strategies import expressions
from hypothesis import HealthCheck, assume, event, given, reject, settings
from hypothesis import strategies as st
from language_world import SCOPE

from flashgen.codegen import generate, load_module, uses_schedule
from flashgen.errors import UnreadError
from flashgen.lang.evaluate import evaluate
from flashgen.lang.nodes import Type, const, var
from flashgen.lang.scope import Scope
from flashgen.problems.calls import Call, make_inputs
from flashgen.problems.problem import Problem
from flashgen.runtime import Config
from flashgen.spec import load
from flashgen.spec.variant import Variant
from flashgen.verify.budget import judge
from flashgen.verify.row_terms import counted_apart

PROBLEM = Problem(2, 2, 1, 5, 19, 16, 16, "float32")
PARAMS = {
    "W": 3,
    "n": {"value": 3, "runtime": True},
    "cap": {"value": 1.5, "runtime": True},
    "flag": {"value": True, "runtime": True},
}
INPUTS = {
    "doc": {"shape": ["batch", "kv_len"], "dtype": "int32"},
    "off": {"shape": ["docs"], "dtype": "int64"},
    "rel": {"shape": ["heads", "2*W + 1"], "dtype": "float32"},
    "keep": {"shape": ["batch", "kv_len"], "dtype": "bool"},
    "gain": {"shape": [], "dtype": "float32"},
    "shift": {"shape": [], "dtype": "int32"},
}
NAMES = {name: var(name, Type.INT) for name in ("b", "h", "kv_h", "q", "k", "q_len", "kv_len", "heads", "n")}
TENSORS = SCOPE.tensors
MASK_SCOPE = Scope({**NAMES, "cap": var("cap", Type.FLOAT), "flag": var("flag", Type.BOOL), "W": const(3)}, TENSORS)
SCORE_SCOPE = Scope({**MASK_SCOPE.names, "score": var("score", Type.FLOAT)}, TENSORS)

# What a drawn mask is joined with, so that many masks need a schedule and many see part of the keys.
JOINED = ["{}", "({}) & (k <= q)", "({}) & (k % 40 < 25)", "({}) | (q // 40 == k // 40)", "({}) ^ (k % 16 < 8)"]


def variant_of(score: str, mask: str, align: str) -> Variant:
    """A spec with the params and inputs that the expressions name."""
    named = set(re.findall(r"\w+", f"{score} {mask}"))
    inputs = {name: form for name, form in INPUTS.items() if name in named}
    params = {name: form for name, form in PARAMS.items() if name in named or (name == "W" and "rel" in named)}
    spec = {"name": "drawn", "align": align, "params": params, "inputs": inputs, "score": score, "mask": mask}
    try:
        return load({key: value for key, value in spec.items() if value})
    except UnreadError:
        # Folding may leave nothing of a param or input, and a spec may not declare what it does not read.
        reject()


def direct(variant: Variant, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse by the definition, one pair after the other in Python's own floats."""
    (batch, heads, q_len, dim), (_, kv_heads, kv_len, v_dim) = call.q.shape, call.v.shape
    tensors = {name: tensor.tolist() for name, tensor in call.inputs.items()}
    q, k, v = call.q.tolist(), call.k.tolist(), call.v.tolist()
    sizes = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len, "head_dim": dim}
    out = torch.zeros(batch, heads, q_len, v_dim, dtype=torch.float64)
    lse = torch.full((batch, heads, q_len), -math.inf, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            kv_h = h // (heads // kv_heads)
            for row in range(q_len):
                position = row + kv_len - q_len if variant.align == "bottom_right" else row
                scores = {}
                for key in range(kv_len):
                    dot = math.fsum(x * y for x, y in zip(q[b][h][row], k[b][kv_h][key], strict=True)) / math.sqrt(dim)
                    at = {**sizes, **call.params, "b": b, "h": h, "kv_h": kv_h, "q": position, "k": key, "score": dot}
                    if evaluate(variant.mask, at, tensors):
                        scores[key] = float(evaluate(variant.score, at, tensors))
                if scores:
                    top = max(scores.values())
                    weights = {key: math.exp(score - top) for key, score in scores.items()}
                    total = math.fsum(weights.values())
                    lse[b, h, row] = top + math.log(total)
                    for d in range(v_dim):
                        out[b, h, row, d] = math.fsum(w * v[b][kv_h][key][d] for key, w in weights.items()) / total
    return out, lse


def drawn_call(variant: Variant) -> Call:
    call = make_inputs(variant, PROBLEM)
    # Comparisons and floor read floats that every precision holds exactly.
    exact = {name: (4 * t).round() / 4 if t.is_floating_point() else t for name, t in call.inputs.items()}
    return replace(call, inputs=exact)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drawn")


@settings(max_examples=settings().max_examples // 3, suppress_health_check=[HealthCheck.too_slow])
@given(
    score=st.one_of(st.just("score"), expressions(Type.FLOAT, SCORE_SCOPE)),
    drawn=st.one_of(st.just("True"), expressions(Type.BOOL, MASK_SCOPE)),
    joined=st.sampled_from(JOINED),
    align=st.sampled_from(["bottom_right", "top_left"]),
    tile=st.sampled_from([(16, 16), (32, 32)]),
)
def test_three_ways_agree(folder: Path, score: str, drawn: str, joined: str, align: str, tile: tuple[int, int]) -> None:
    variant = variant_of(score, joined.format(drawn), align)
    event("schedule" if uses_schedule(variant) else "closed form")
    call = drawn_call(variant)
    config = Config(*(max(n, 32) if uses_schedule(variant) else n for n in tile), 4, 1)
    truth, truth_lse = direct(variant, call)
    assume(bool(truth.isfinite().all()))
    module = load_module(generate(variant, folder))

    wide = [t.double() for t in (call.q, call.k, call.v)]
    ref, ref_lse = module.reference(*wide, **call.keywords, return_lse=True)
    torch.testing.assert_close(ref, truth, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ref_lse.double(), truth_lse, rtol=1e-9, atol=1e-9)

    out, lse = module.attention(call.q, call.k, call.v, **call.keywords, return_lse=True, config=config)
    verdict = judge(
        out, lse, call, _direct_truth(module.reference, variant, call), counted_apart=counted_apart(variant, call)
    )
    event("within 1e-4" if verdict.budget < 1e-4 else "a steep expression")
    assert verdict.ok, verdict


def _direct_truth(reference: Callable[..., Any], variant: Variant, call: Call) -> Callable[..., Any]:
    """A reference whose float64 answers are the direct ones; what eager float32 loses it takes from the module."""

    def answer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, return_lse: bool = False, **keywords: Any) -> Any:
        if q.dtype != torch.float64:
            return reference(q, k, v, return_lse=return_lse, **keywords)
        out, lse = direct(variant, replace(call, q=q, k=k, v=v))
        return (out, lse) if return_lse else out

    return answer
