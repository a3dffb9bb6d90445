"""Which tiles read an input at one place, and how many of a long sequence do."""

from __future__ import annotations

from typing import Any

import pytest

from flashgen.analysis.facts import facts_of
from flashgen.analysis.uniform import Uniform
from flashgen.lang.traversal import variables
from flashgen.spec.load import load

TABLE = {"t": {"shape": ["heads", 33], "dtype": "float32"}}
DOCUMENTS = {"doc": {"shape": ["kv_len"], "dtype": "int32"}}
LONG = {"t": {"shape": ["heads", 10000], "dtype": "float32"}}
NEAR = "t[h, clamp(q - k, -16, 16) + 16]"
BUCKETS = "t[h, where(k > q, 16, 0) + where(abs(q - k) < 8, abs(q - k), min(8 + floor(log(abs(q - k) / 8) * w), 15))]"


def uniform(score: str, **others: Any) -> Uniform | None:
    return facts_of(load({"name": "read", "inputs": TABLE, **others, "score": f"score + {score}"})).uniform


@pytest.mark.parametrize(
    ("score", "others", "least", "most"),
    [
        (NEAR, {}, 0.9, 1.0),
        (NEAR, {"causal": True}, 0.9, 1.0),
        (NEAR, {"mask": "(k < 1024) | (k <= q)"}, 0.9, 1.0),
        (BUCKETS, {"params": {"w": 2.88}}, 0.9, 1.0),
        (BUCKETS, {"params": {"w": {"value": 2.88, "runtime": True}}}, 0.9, 1.0),
        ("t[h, min(q // 512, 3) * 4 + min(k // 512, 3)]", {}, 1.0, 1.0),
        # Many are mixed, or near the diagonal.
        (NEAR, {"window": {"left": 1023, "right": 0}}, 0.4, 0.7),
        (NEAR, {"window": {"left": 255, "right": 0}}, 0.0, 0.1),
        # Documents may be long.
        (NEAR, {"inputs": TABLE | DOCUMENTS, "mask": "doc[q] == doc[k]"}, 0.9, 1.0),
    ],
)
def test_the_share_of_tiles_that_are_full_and_read_at_one_place(
    score: str, others: dict[str, Any], least: float, most: float
) -> None:
    found = uniform(score, **others)
    assert found is not None
    assert least <= found.share <= most
    assert not {"q", "k"} & variables(found.condition)
    assert len(found.reads) == 1


@pytest.mark.parametrize(
    ("score", "others"),
    [
        ("t[h, 3]", {}),  # by no pair
        ("t[h, q % 33]", {}),
        ("t[h, (q - k) % 33]", {}),
        ("t[h, clamp(q - k, 0, 9000)]", {"inputs": LONG, "causal": True}),  # no tile of a sequence of 8192
        ("t[h, max((q - k) // 64, 0) % 33]", {"mask": "k <= q - 128"}),  # none that sees anything
        ("t[h, max(q - k, 0)]", {"inputs": LONG, "causal": True}),
        ("t[h, floor(score)]", {}),
    ],
)
def test_others_have_none(score: str, others: dict[str, Any]) -> None:
    assert uniform(score, **others) is None


def test_in_such_a_tile_the_logit_reads_what_the_first_pair_does() -> None:
    found = facts_of(load({"name": "read", "inputs": TABLE, "score": f"score * 2 + {NEAR} * k"}))
    assert found.uniform is not None
    read = found.uniform.in_tile(found.logits.pair)
    assert {"q_first", "k_first", "k"} <= variables(read)
    assert "q" not in variables(read)
