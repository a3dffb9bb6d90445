"""The tables of cases cover what they claim to."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, product

import pytest
import torch
from gallery import NAMES, VARIANTS

from flashgen.spec import load
from flashgen.verify.cases import Case, cases_for, gradient_cases_for
from flashgen.verify.run import dense_call


def full_level(spec: dict) -> tuple[Case, ...]:
    return cases_for(load(spec), "full", gpu=False, scheduled=False)


def test_every_pair_of_grouping_head_dim_layout_and_dtype_meets() -> None:
    pairs = [case for case in full_level({"name": "plain"}) if case.name.startswith("pairs")]
    factors = {
        "group": ({1, 2, 4}, lambda c: c.problem.heads // c.problem.kv_heads),
        "head_dim": ({40, 64, 80}, lambda c: c.problem.head_dim),
        "layout": ({"bhsd", "bshd"}, lambda c: c.layout),
        "dtype": ({"float16", "bfloat16", "float32"}, lambda c: c.problem.dtype),
    }
    for (values, of), (others, of_other) in combinations(factors.values(), 2):
        assert {(of(c), of_other(c)) for c in pairs} == set(product(values, others))
    assert {c.problem.q_len for c in pairs} == {c.problem.kv_len for c in pairs} == {1, 17, 100, 128, 193}
    assert {c.problem.heads for c in pairs} == {4}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("cases", [cases_for, gradient_cases_for])
def test_levels_nest_and_names_are_their_own(name: str, gpu: bool, cases: Callable[..., tuple[Case, ...]]) -> None:
    variant = VARIANTS[name]
    quick, full = (cases(variant, level, gpu, True) for level in ("quick", "full"))
    assert set(quick) < set(full)
    assert len({case.name for case in full}) == len(full)
    assert any(case.planned for case in quick)


@pytest.mark.parametrize("name", NAMES)
def test_each_level_has_full_tiles_of_a_gpu(name: str) -> None:
    """Also of the kernels for Hopper, whose tiles have up to 192 queries and 128 keys; a ragged one behind them."""
    variant = VARIANTS[name]
    for cases in (cases_for(variant, "quick", True, False), gradient_cases_for(variant, "quick", True, False)):
        lengths = [(case.lengths, case.problem) for case in cases if case.problem.dtype != "float32"]
        long = [each for own, p in lengths for each in own or [(p.q_len, p.kv_len)] if each[0] > 192 and each[1] > 256]
        assert any(q_len % 192 and q_len % 128 and kv_len % 128 for q_len, kv_len in long)


def test_a_constant_is_reached_and_passed() -> None:
    window = full_level({"name": "window", "window": {"left": 1023, "right": 0}})
    assert max(case.problem.kv_len for case in window) > 1023 + 64
    top_left = full_level({"name": "window", "window": {"left": 1023, "right": 0}, "align": "top_left"})
    assert max(case.problem.q_len for case in top_left) > 1023 + 64


@pytest.mark.parametrize(
    "mask", ["k >> 11 == q >> 11", "floor(k / 2048) == floor(q / 2048)", "q - k < 2e3", "q - k < 2 * W * W"]
)
def test_a_constant_is_passed_however_it_is_written(mask: str) -> None:
    cases = full_level({"name": "far", "mask": f"(k <= q) & ({mask})", "params": {"W": 32}})
    assert max(case.problem.kv_len for case in cases) > 2000 + 64


def test_a_cap_of_scores_asks_for_no_length() -> None:
    plain, capped = full_level({"name": "plain"}), full_level({"name": "capped", "softcap": 5000.0})
    assert {case.name for case in capped} == {case.name for case in plain}


def test_an_input_by_blocks_of_keys_has_blocks() -> None:
    by_blocks = {"t": {"shape": ["kv_len // 1000"], "dtype": "float32"}}
    variant = load({"name": "blocks", "inputs": by_blocks, "score": "score + t[0]"})
    for cases in (cases_for, gradient_cases_for):
        assert any(case.problem.kv_len > 1000 for case in cases(variant, "quick", gpu=False, scheduled=False))


@pytest.mark.parametrize("align", ["top_left", "bottom_right"])
def test_a_long_reach_is_no_large_score_matrix(align: str) -> None:
    cases = full_level({"name": "window", "window": {"left": 8000, "right": 8000}, "align": align})
    assert max(case.problem.kv_len for case in cases) > 8000 + 64
    assert max(case.problem.q_len for case in cases) > (8000 if align == "top_left" else 100)
    assert max(case.problem.q_len * case.problem.kv_len for case in cases) < 2_000_000


def test_runtime_params_vary_and_stay_within_the_keys() -> None:
    prefix = {"name": "prefix", "params": {"prefix": {"value": 1024, "runtime": True}}, "mask": "k < prefix"}
    cases = full_level(prefix)
    values = {dict(case.params).get("prefix", 1024) for case in cases}
    assert len(values) > 3
    inside = [c for c in cases if 0 < dict(c.params).get("prefix", 1024) < c.problem.kv_len]
    assert len(inside) >= len(cases) - 3


@pytest.mark.parametrize("value", [2**31 - 1, -(2**31)])
def test_runtime_params_are_drawn_of_32_bits(value: int) -> None:
    spec = {"name": "edge", "params": {"W": {"value": value, "runtime": True}}, "mask": "q - k < W"}
    drawn = {given for case in full_level(spec) for _, given in case.params}
    assert len(drawn) > 1 and all(-(2**31) <= given < 2**31 for given in drawn)


def test_sugar_gets_its_own_cases() -> None:
    alibi = {case.name for case in full_level({"name": "biased", "bias": "alibi"})}
    assert "default inputs" in alibi
    blocks = {case.name for case in full_level({"name": "blocks", "block_sparse": {"block_q": 64, "block_kv": 64}})}
    assert "broadcast inputs" in blocks


@pytest.mark.parametrize("cases", [cases_for, gradient_cases_for])
def test_what_is_proven_of_dense_calls_is_proven_of_packed_ones(cases: Callable[..., tuple[Case, ...]]) -> None:
    spec = {
        "name": "much",
        "bias": "alibi",
        "dropout": 0.1,
        "block_sparse": {"block_q": 64, "block_kv": 64},
        "params": {"cap": {"value": 30.0, "runtime": True}, "W": {"value": 700, "runtime": True}},
        "score": "cap * tanh(score / cap)",
        "mask": "abs(q - k) < W",
    }
    packed = [case for case in cases(load(spec), "quick", gpu=False, scheduled=True) if case.lengths]
    assert any(case.planned for case in packed) and any(case.defaults for case in packed)
    assert any(case.broadcast for case in packed) and not all(case.drops for case in packed)
    assert {dict(case.params).get("cap", 30.0) for case in packed} > {30.0}
    assert any(keys > 700 for case in packed for _, keys in case.lengths)


# Masks that inputs decide, and which pairs they show.
DOCUMENT = {"inputs": {"doc": {"shape": ["batch", "kv_len"], "dtype": "int32"}}, "mask": "doc[b, q] == doc[b, k]"}
PADDING = {"inputs": {"kept": {"shape": ["batch", "kv_len"], "dtype": "bool"}}, "mask": "kept[b, k]"}
PAIRS = {
    "inputs": {"shown": {"shape": ["q_len", "kv_len"], "dtype": "bool"}},
    "mask": "shown[q, k]",
    "align": "top_left",
}
BY_INPUTS = {
    "document": (DOCUMENT, lambda doc, q_len: doc[:, -q_len:, None] == doc[:, None]),
    "padding": (PADDING, lambda kept, q_len: kept[:, None].expand(-1, q_len, -1)),
    "pairs": (PAIRS, lambda shown, q_len: shown[None]),
}


@pytest.mark.parametrize("name", BY_INPUTS)
@pytest.mark.parametrize("gpu", [False, True])
def test_where_inputs_decide_some_tiles_are_seen_whole_and_some_not_at_all(name: str, gpu: bool) -> None:
    spec, shown_by = BY_INPUTS[name]
    variant, tile = load({"name": name, **spec}), 128 if gpu else 32
    for cases in (cases_for, gradient_cases_for):
        found = [case for case in cases(variant, "quick", gpu, True) if case.stretches]
        assert {bool(case.lengths) for case in found} == {False, True}
        (dense,) = (case for case in found if not case.lengths)
        (values,) = dense_call(variant, dense, "cpu").inputs.values()
        shown = shown_by(values, dense.problem.q_len).float()
        shares = torch.nn.functional.avg_pool2d(shown, tile)
        assert shares.min() == 0 and shares.max() == 1
