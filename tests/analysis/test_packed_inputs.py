"""Which inputs are packed as the sequences are: those of a batch that go along one length once."""

from __future__ import annotations

import pytest

from flashgen.analysis.packed import is_along_queries, is_packed
from flashgen.spec import load


@pytest.mark.parametrize(
    ("shape", "packed", "along_queries"),
    [
        (["batch", "kv_len"], True, False),
        (["batch", "heads", "q_len"], True, True),
        ([1, "kv_len"], False, False),
        (["kv_len"], False, False),
        (["batch", "heads", "q_len", "kv_len"], False, False),
        (["batch", "heads", "kv_len", "kv_len"], False, False),
    ],
)
def test_one_length_of_each_sequence(shape: list[str | int], packed: bool, along_queries: bool) -> None:
    table, score = {"t": {"shape": shape, "dtype": "float32"}}, f"score + t[{', '.join(['0'] * len(shape))}]"
    (tensor,) = load({"name": "mine", "inputs": table, "score": score}).inputs
    assert (is_packed(tensor), is_along_queries(tensor)) == (packed, along_queries)
