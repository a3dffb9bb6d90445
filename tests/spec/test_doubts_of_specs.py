"""A spec that is well formed and may not say what was meant is pointed out."""

from __future__ import annotations

import pytest

from flashgen.spec import load


@pytest.mark.parametrize("score", ["-0.5 * abs(q - k)", "0", "d"])
def test_a_bias_in_the_place_of_the_score(score: str) -> None:
    (said,) = load({"name": "a", "let": {"d": "q - k"}, "score": score}).warnings
    assert said.startswith("<dict>:score:1:1: 'score' is not read, ")
    assert said.endswith("where something is added to it write 'score + ...'")


@pytest.mark.parametrize("score", ["score - abs(q - k)", "d", "where(k < 3, score, -inf)"])
def test_a_score_that_is_read(score: str) -> None:
    assert load({"name": "a", "let": {"d": "2 * score"}, "score": score}).warnings == ()


def test_sugar_reads_the_score() -> None:
    assert load({"name": "a", "softcap": 30.0, "bias": "alibi", "causal": True}).warnings == ()


NAMED = {"batch": "B", "heads": "num_heads", "kv_heads": "n_kv_heads", "q_len": "seqlen_q", "kv_len": "seq_len"}


@pytest.mark.parametrize(("size", "index"), [("batch", "b"), ("heads", "h"), ("kv_heads", "kv_h"), ("q_len", "q")])
def test_a_size_by_the_name_that_others_give_it(size: str, index: str) -> None:
    """It binds a new dimension: no call checks it against the size, and packed calls do not pack along it."""
    inputs = {"x": {"shape": [3, NAMED[size]], "dtype": "float32"}}
    (said,) = load({"name": "a", "inputs": inputs, "score": f"score + x[0, {index}]"}).warnings
    assert said.startswith(f"<dict>:inputs.x.shape.1: the dimension '{NAMED[size]}' of 'x' is a new name")
    assert f"'{size}', the number of " in said


@pytest.mark.parametrize(
    ("dimension", "index"), [("kv_len", "k"), ("docs", "k"), ("seq_len", "k // 2"), ("num_heads", "k"), ("T", "h")]
)
def test_a_dimension_of_ones_own(dimension: str, index: str) -> None:
    inputs = {"x": {"shape": [dimension], "dtype": "float32"}}
    assert load({"name": "a", "inputs": inputs, "score": f"score + x[{index}]"}).warnings == ()
