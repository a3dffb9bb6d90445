"""Which inputs are read for each pair at keys that lie side by side."""

from __future__ import annotations

import pytest

from flashgen.analysis.facts import facts_of
from flashgen.analysis.rows_of_pairs import rows_of_pairs
from flashgen.lang.show import show
from flashgen.spec import load


def found(score: str, shape: list[str | int], **spec: bool) -> list[str]:
    """The reads of `t`, as the language writes them."""
    inputs = {"t": {"shape": shape, "dtype": "float16"}}
    if "u[" in score:
        inputs["u"] = {"shape": ["q_len"], "dtype": "int32"}
    facts = facts_of(load({"name": "reads", "inputs": inputs, "score": score, **spec}))
    return [show(read) for read in rows_of_pairs(facts)]


@pytest.mark.parametrize(
    ("read", "shape"),
    [
        ("t[q, k]", ["q_len", "kv_len"]),
        ("t[b, h // 2, q, k]", ["batch", "heads", "q_len", "kv_len"]),
        ("t[h, q % 4, k]", ["heads", 4, "kv_len"]),
        ("t[q * q, k]", ["q_len", "kv_len"]),
        ("t[u[0], q, k]", ["batch", "q_len", "kv_len"]),
    ],
)
def test_a_row_has_its_keys_side_by_side(read: str, shape: list[str | int]) -> None:
    assert found(f"score + {read}", shape) == [read]
    assert found(f"score * {read}", shape) == [read]
    assert found(f"tanh(score + {read})", shape, causal=True) == [read]


@pytest.mark.parametrize(
    ("read", "shape"),
    [
        ("t[k, q]", ["kv_len", "q_len"]),  # its queries do
        ("t[q, k]", ["q_len", 64]),  # keys beyond the last are read there
        ("t[q, k + 1]", ["q_len", "kv_len"]),
        ("t[q, q - k]", ["q_len", "kv_len"]),
        ("t[k % 2, q, k]", [2, "q_len", "kv_len"]),
        ("t[u[q], k]", ["q_len", "kv_len"]),  # rows that are read for
        ("t[h, k]", ["heads", "kv_len"]),  # the same in each row
        ("t[h, q]", ["heads", "q_len"]),
    ],
)
def test_other_reads_do_not(read: str, shape: list[str | int]) -> None:
    assert found(f"score + {read}", shape) == []


def test_what_each_turn_of_a_loop_reads_is_no_tile() -> None:
    assert found("score + sum(i, 300, t[i, q, k])", [300, "q_len", "kv_len"]) == []
