"""Paged cases through verify: every form of input, and what a wrong result of one sequence says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from gallery import VARIANTS

from flashgen.codegen import generate, load_module
from flashgen.errors import VerificationFailed
from flashgen.problems.paged import dense_inputs, make_batch, packed_keywords
from flashgen.spec import load
from flashgen.verify import PagedCase, paged_cases_for, run_case, verify
from flashgen.verify.paged import batch_of_case, judge_batch, judge_sequences

CAUSAL = VARIANTS["causal"]
# Which sequence of how many one is, inputs along queries, along keys and along both, a dimension's name in two of them.
EVERY_FORM = {
    "name": "every_form",
    "score": "score + on_q[b, h, q - kv_len + q_len] + on_k[b, k] + both[q - kv_len + q_len, k] + b / batch"
    " + sum(i, places, at[i] * along[b, k, i])",
    "mask": "(k <= q + 30) & ((k + b) % 7 != 3)",
    "inputs": {
        "on_q": {"shape": ["batch", "heads", "q_len"], "dtype": "float32"},
        "on_k": {"shape": ["batch", "kv_len"], "dtype": "float32"},
        "both": {"shape": ["q_len", "kv_len"], "dtype": "float32"},
        "at": {"shape": ["places"], "dtype": "float32"},
        "along": {"shape": ["batch", "kv_len", "places"], "dtype": "float32"},
    },
}


def test_a_variant_with_inputs_of_every_form_is_proven(tmp_path: Path) -> None:
    variant = load(EVERY_FORM)
    module = load_module(generate(variant, tmp_path))
    case = PagedCase("inputs", (40, 0, 17, 65), (3, 1, 0, 20), head_dim=16, v_head_dim=16, dtype="float32", seed=3)
    result = run_case(module, variant, case, "cpu")
    assert result.ok, result


def test_a_level_has_every_cache_and_scale() -> None:
    cases = paged_cases_for(CAUSAL, "full")
    assert {case.cache for case in cases} == {"", "float8_e4m3fn", "float8_e5m2", "int8"}
    assert {case.scales for case in cases} == {"none", "one", "head", "token"}
    assert len({case.seed for case in cases}) == len(cases)
    assert "float8_e4m3fn" not in {case.cache for case in paged_cases_for(CAUSAL, "full", "sm_80")}


@pytest.mark.parametrize("align", ["top_left", "bottom_right"])
def test_a_constant_is_passed_by_the_side_that_can(align: str) -> None:
    """At the top queries come as far as a window reaches only where they are as many."""
    variant = load({"name": "window", "window": {"left": 1500, "right": 1500}, "align": align})
    cases = paged_cases_for(variant, "quick")
    assert max(max(case.kv_lens) for case in cases) > 1500
    assert (max(max(case.q_lens or (1,)) for case in cases) > 1500) == (align == "top_left")


def of_blocks(dim: str) -> dict[str, object]:
    """A spec with an input that has an element only where a batch is long enough."""
    return {
        "name": "of_blocks",
        "score": "score + a[b, q // 128]",
        "inputs": {"a": {"shape": ["batch", dim], "dtype": "float32"}},
    }


@pytest.mark.parametrize("level", ["quick", "full"])
def test_a_case_has_the_sizes_of_its_batch(level: str) -> None:
    variant = load(of_blocks("kv_len"))
    for case in paged_cases_for(variant, level):
        batch = batch_of_case(case, "cpu")
        a = dense_inputs(variant, batch).inputs["a"]
        assert tuple(a.shape) == (case.problem.batch, case.problem.kv_len) == (len(case.kv_lens), batch.longest)


@pytest.mark.parametrize(("dim", "left"), [("q_len", 3), ("q_len // 8", 1), ("kv_len // 200", 2), ("kv_len - 97", 2)])
def test_cases_whose_inputs_have_no_element_are_left_out(dim: str, left: int, tmp_path: Path) -> None:
    variant = load(of_blocks(dim))
    cases = paged_cases_for(variant, "quick")
    assert len(cases) == left
    module = load_module(generate(variant, tmp_path))
    for case in cases:
        result = run_case(module, variant, case, "cpu")
        assert result.ok, result


def test_what_has_no_case_is_not_proven(tmp_path: Path) -> None:
    variant = load(of_blocks("kv_len // 100000"))
    with pytest.raises(VerificationFailed, match=r"of_blocks is not proven: in each case of level 'quick' some input"):
        verify(generate(variant, tmp_path), variant, device="cpu")


def test_verify_proves_them(tmp_path: Path) -> None:
    report = verify(generate(CAUSAL, tmp_path), CAUSAL, device="cpu")
    assert {case.name for case in paged_cases_for(CAUSAL, "quick")} <= {case.name for case in report.cases if case.ok}


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_a_wrong_sequence_is_named(gallery_module: Callable[[str], ModuleType], value: float) -> None:
    module, batch = gallery_module("causal"), make_batch((30, 0, 50), (2, 1, 1))
    own = dense_inputs(CAUSAL, batch)
    keywords = packed_keywords(CAUSAL, batch, own)
    out, lse = module.attention_paged(*batch.arguments, **batch.options, **keywords, return_lse=True)
    right = out.clone()
    out[3] = value
    verdicts = list(judge_sequences(module, CAUSAL, batch, own, out, lse))
    assert [verdict.ok for verdict in verdicts] == [True, True, False]
    assert verdicts[2].detail.startswith("sequence 2: out at")
    assert judge_batch(module, CAUSAL, batch, own, out, lse) == verdicts[2]
    first = out.clone()
    first[0], first[3] = value, right[3]
    worst = judge_batch(module, CAUSAL, batch, own, first, lse)
    assert not worst.ok and worst.detail.startswith("sequence 0: out at")
    out[2] = 1.0
    assert not list(judge_sequences(module, CAUSAL, batch, own, out, lse))[1].ok


def test_a_case_is_proven_in_the_form_that_it_has(gallery_module: Callable[[str], ModuleType]) -> None:
    module, given = gallery_module("causal"), list[dict[str, Any]]()

    def attention_paged(*arguments: Any, **keywords: Any) -> Any:
        given.append(keywords)
        return module.attention_paged(*arguments, **keywords)

    watched = SimpleNamespace(**{**vars(module), "attention_paged": attention_paged})
    case = PagedCase("both", (40, 17), head_dim=16, v_head_dim=16, batch_invariant=True)
    for each in (case, replace(case, planned=True)):
        assert run_case(cast(ModuleType, watched), CAUSAL, each, "cpu").ok
    assert given[0]["batch_invariant"] and given[0].get("plan") is None
    assert given[1]["plan"].batch_invariant


def test_what_no_sequence_has_is_garbage() -> None:
    batch = make_batch((20, 1))
    assert int(batch.k_cache.isnan().any((-1, -2)).sum()) == batch.k_cache[..., 0, 0].numel() - 21
    assert not any(each.isnan().any() for b in range(2) for each in batch.sequence(b))
    assert torch.equal(batch.sequence(0)[1][0, 1, 17], batch.k_cache[batch.block_table[0, 1], 1, 1])
