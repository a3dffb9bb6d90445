"""Inputs of pictures: of large ones what is shown, and all pictures of a seed alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flashgen.explain import picture_of, score_picture_of
from flashgen.problems import values
from flashgen.spec import load

LENGTH = 48
TUNE = {"tune": {"shapes": [{"batch": 1, "heads": 8, "kv_heads": 4, "q_len": LENGTH}]}}
ALL_PAIRS = ["batch", "heads", "q_len", "kv_len"]
BIAS, KEEP = {"shape": ALL_PAIRS, "dtype": "float32"}, {"shape": ALL_PAIRS, "dtype": "bool"}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many elements were drawn, time by time."""
    counts: list[int] = []
    uniform, normal = values._uniform, torch.randn

    def counted(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        counts.append(int(np.prod(shape)))
        return uniform(shape, generator)

    def counted_normal(shape: tuple[int, ...], **options: Any) -> torch.Tensor:
        counts.append(int(np.prod(shape)))
        return normal(shape, **options)

    monkeypatch.setattr(values, "_uniform", counted)
    monkeypatch.setattr(torch, "randn", counted_normal)
    return counts


def test_of_a_mask_one_head_is_drawn_and_of_what_it_does_not_read_nothing(drawn: list[int]) -> None:
    variant = load({
        "name": "one_head", **TUNE, "inputs": {"bias": BIAS, "keep": KEEP}, "score": "score + bias[b, h, q, k]",
        "mask": "keep[b, h, q, k]",
    })  # fmt: skip
    panel = picture_of(variant, LENGTH)
    of_qkv, (of_keep,) = drawn[:3], drawn[3:]
    assert of_keep == LENGTH * LENGTH
    assert max(of_qkv) == 8 * LENGTH * variant.head_dims[0]
    assert 0.4 < panel.cells.density < 0.6


@pytest.mark.parametrize(("word", "heads"), [("h", "heads"), ("kv_h", "kv_heads")])
def test_of_scores_the_heads_are_drawn_that_are_shown(drawn: list[int], word: str, heads: str) -> None:
    bias = {**BIAS, "shape": ["batch", heads, "q_len", "kv_len"]}
    variant = load({"name": "few_heads", **TUNE, "inputs": {"bias": bias}, "score": f"score + bias[b, {word}, q, k]"})
    panel = score_picture_of(variant, picture_of(variant, LENGTH))
    # After q, k and v of both pictures.
    assert drawn[6:] == 4 * [LENGTH * LENGTH]
    shown = {each.head: each.values for each in panel.added}
    assert list(shown) == [0, 2, 5, 7]
    assert len({each.tobytes() for each in shown.values()}) == 4


def test_heads_of_one_kv_head_read_the_same() -> None:
    bias = {**BIAS, "shape": ["kv_heads", "q_len", "kv_len"]}
    tune = {"tune": {"shapes": [{"batch": 1, "heads": 4, "kv_heads": 2, "q_len": LENGTH}]}}
    variant = load({"name": "by_group", **tune, "inputs": {"bias": bias}, "score": "score + bias[kv_h, q, k]"})
    first, second, third, fourth = (
        each.values for each in score_picture_of(variant, picture_of(variant, LENGTH)).added
    )
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(third, fourth)
    assert (first != third).any()


def test_a_head_that_others_read_too_is_drawn_with_all() -> None:
    variant = load({
        "name": "next_head", **TUNE, "inputs": {"bias": BIAS},
        "score": "score + bias[b, h, q, k] - bias[b, min(h + 1, heads - 1), q, k]",
    })  # fmt: skip
    first, *_, last = score_picture_of(variant, picture_of(variant, LENGTH)).added
    assert (first.values != 0).any()
    assert (last.values == 0).all()


def test_what_a_large_input_leaves_out_changes_no_other() -> None:
    """Whether a picture reads it or not: a document's ends are where the mask has them."""
    doc = {"shape": ["batch", "kv_len"], "dtype": "int32"}
    spec = {"mask": "doc[b, q] == doc[b, k]", **TUNE}
    plain = picture_of(load({"name": "doc_alone", **spec, "inputs": {"doc": doc}}), LENGTH, seed=3)
    beside = {**spec, "inputs": {"bias": BIAS, "doc": doc}, "score": "score + bias[b, h, q, k] + 0 * doc[b, k]"}
    np.testing.assert_array_equal(
        plain.cells.counts, picture_of(load({"name": "beside", **beside}), LENGTH, 3).cells.counts
    )
