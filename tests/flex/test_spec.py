"""Mods as specs: for each pair of a query and a key the spec says what the mod does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from flex_mods import BATCH, HEADS, LENGTH, Mod, arguments
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

from flashgen.errors import ModError
from flashgen.flex import to_spec
from flashgen.lang.evaluate import evaluator
from flashgen.spec import load

PAIRS = [
    (b, h, q, k) for b in range(BATCH) for h in range(HEADS) for q in (0, 3, 7, 16, 23) for k in (0, 2, 7, 8, 15, 23)
]


def torch_says(mod: Callable[..., torch.Tensor], scores: torch.Tensor | None) -> list[Any]:
    """The results of a mod at the PAIRS, by torch."""
    indices = [index.int() for index in torch.tensor(PAIRS).unbind(1)]
    given = indices if scores is None else [scores, *indices]
    with TransformGetItemToIndex():
        return torch.vmap(mod)(*given).tolist()


def spec_says(
    text: str, spec: dict[str, Any], tensors: dict[str, torch.Tensor], numbers: dict[str, Any], scores: torch.Tensor
) -> list[Any]:
    variant = load(spec)
    at = evaluator(getattr(variant, text))
    values = {name: tensor.tolist() for name, tensor in tensors.items()}
    sizes: dict[str, Any] = {"batch": BATCH, "heads": HEADS, "q_len": LENGTH, "kv_len": LENGTH, **numbers}
    for tensor in variant.inputs:
        for axis, dim in enumerate(tensor.dims):
            if dim.binds:
                sizes[dim.binds] = tensors[tensor.name].shape[axis]
    return [
        at({**sizes, **dict(zip("bhqk", pair, strict=True)), "score": score}, values)
        for pair, score in zip(PAIRS, scores.tolist(), strict=True)
    ]


@pytest.mark.parametrize("mod", **arguments())
def test_a_spec_says_what_the_mods_do(mod: Mod) -> None:
    scores = torch.randn(len(PAIRS), generator=torch.Generator().manual_seed(1))
    spec, tensors, numbers = to_spec(mod.score, mod.mask, name="mine")
    assert load(spec).align == "top_left"
    expected = scores.tolist() if mod.score is None else torch_says(mod.score, scores)
    visible = [True] * len(PAIRS) if mod.mask is None else torch_says(mod.mask, None)
    seen = spec_says("mask", spec, tensors, numbers, scores)
    found = spec_says("score", spec, tensors, numbers, scores)
    for pair, is_seen, is_visible, score, want in zip(PAIRS, seen, visible, found, expected, strict=True):
        assert is_seen == (bool(is_visible) and want != -math.inf), pair
        if is_seen:
            assert score == pytest.approx(want, rel=2e-5, abs=1e-5), pair


def spec_of(score: Callable[..., Any] | None = None, mask: Callable[..., Any] | None = None) -> dict[str, Any]:
    return to_spec(score, mask, name="mine")[0]


def test_it_reads_as_a_person_would_have_written_it() -> None:
    slopes, doc, window = torch.rand(4), torch.zeros(2, 24, dtype=torch.int32), 16

    def alibi(score, b, h, q_idx, kv_idx):
        return score - slopes[h] * (q_idx - kv_idx).abs()

    def packed(b, h, q_idx, kv_idx):
        distance = q_idx - kv_idx
        return (q_idx >= kv_idx) & (distance < window) & (doc[b, q_idx] == doc[b, kv_idx])

    assert spec_of(alibi, packed) == {
        "name": "mine",
        "description": "FlexAttention with alibi and packed.",
        "align": "top_left",
        "params": {"window": {"value": 16, "runtime": True}},
        "inputs": {
            "slopes": {"shape": ["heads"], "dtype": "float32"},
            "doc": {"shape": ["batch", "kv_len"], "dtype": "int32"},
        },
        "causal": True,
        "let": {"distance": "q - k"},
        "score": "score - slopes[h] * abs(distance)",
        "mask": "(distance < window) & (doc[b, q] == doc[b, k])",
    }


def test_what_is_read_twice_is_a_let_by_its_own_name() -> None:
    def mod(score, b, h, q, k):
        distance = (q - k).abs() + 1
        return score / distance + distance

    assert spec_of(mod)["let"] == {"distance": "abs(q - k) + 1"}
    assert spec_of(mod)["score"] == "score / distance + distance"


def test_a_number_that_decides_is_no_argument() -> None:
    def repeated(times: int, weight: float) -> Callable[..., Any]:
        def mod(score, b, h, q, k):
            for _ in range(times):
                score = score + weight * times
            return score

        return mod

    spec, _, numbers = to_spec(repeated(2, 0.5))
    assert spec["params"] == {"times": 2, "weight": {"value": 0.5, "runtime": True}}
    assert numbers == {"weight": 0.5}


def test_tensors_that_require_gradients_have_them() -> None:
    bias = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    spec, tensors, _ = to_spec(lambda score, b, h, q, k: score + bias[h])
    assert spec["inputs"]["bias"] == {"shape": ["heads"], "dtype": "float32", "grad": True}
    assert tensors["bias"] is bias


def test_names_that_the_language_has_are_taken_by_none() -> None:
    def factory(heads: float, q: torch.Tensor, scale: int) -> Callable[..., Any]:
        return lambda score, b, h, i, j: score * heads + q[i] - scale

    spec, tensors, numbers = to_spec(factory(0.5, torch.zeros(9), 3))
    assert list(tensors) == ["q_"]
    assert list(numbers) == ["heads_", "scale_"]
    assert spec["score"] == "score * heads_ + q_[q] - scale_"


def test_indices_that_cannot_be_negative_are_as_they_were() -> None:
    table = torch.zeros(9)
    assert spec_of(lambda score, b, h, q, k: score + table[q - k])["score"] != "score + table[q - k]"
    below_diagonal = spec_of(lambda score, b, h, q, k: score + table[q - k], lambda b, h, q, k: q >= k)
    assert below_diagonal["score"] == "score + table[q - k]"


def test_mods_that_add_up_much() -> None:
    table = torch.zeros(9)

    def far(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        place = q
        for _ in range(900):
            place = place + 1
        return torch.where(q >= k, score, -float("inf")) + table[place]

    def holes(b: Any, h: Any, q: Any, k: Any) -> Any:
        mask = q >= k
        for i in range(460):
            mask = mask & (q != k + i)
        return mask

    spec = spec_of(far, holes)
    assert spec["score"].startswith("score + table[")
    assert spec["mask"].count("&") == 459


def test_where_queries_outnumber_keys_inputs_along_both_are_as_long_as_queries() -> None:
    doc = torch.zeros(9, dtype=torch.int32)
    same = to_spec(None, lambda b, h, q, k: doc[q] == doc[k], many_queries=True)[0]
    assert same["inputs"]["doc"]["shape"] == ["q_len"]


@pytest.mark.parametrize("transform", [torch.func.grad, torch.vmap])
def test_what_is_made_of_captured_tensors_is_not_handed_out_within_transforms(transform: Any) -> None:
    def taken(bias: torch.Tensor) -> torch.Tensor:
        return to_spec(lambda score, b, h, q, k: score + bias.exp()[h])[1]["bias_exp"].sum()

    with pytest.raises(ModError, match="bias_exp: made of captured tensors within a transform"):
        transform(taken)(torch.zeros(3, 4) if transform is torch.vmap else torch.zeros(4))
