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
        (["batch", "batch", "kv_len"], False, False),
        (["q_len", 3, "batch"], True, True),
    ],
)
def test_one_length_of_each_sequence(shape: list[str | int], packed: bool, along_queries: bool) -> None:
    indices = ", ".join("b" if size == "batch" else "0" for size in shape)
    table, score = {"t": {"shape": shape, "dtype": "float32"}}, f"score + t[{indices}]"
    (tensor,) = load({"name": "mine", "inputs": table, "score": score}).inputs
    assert (is_packed(tensor), is_along_queries(tensor)) == (packed, along_queries)


@pytest.mark.parametrize(
    "others", ["t[0, k]", "t[batch - 1 - b, k]", "t[b, k] + t[b // 2, k]", "where(k < q, t[b, t[3, 1]], 0)"]
)
def test_what_is_read_of_other_sequences_too_is_not_packed(others: str) -> None:
    table = {"t": {"shape": ["batch", "kv_len"], "dtype": "int32"}}
    (tensor,) = load({"name": "mine", "inputs": table, "score": f"score + {others}"}).inputs
    assert not is_packed(tensor)
    (tensor,) = load({"name": "mine", "inputs": table, "mask": "t[b, q] == t[b, k]"}).inputs
    assert is_packed(tensor)
