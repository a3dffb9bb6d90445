"""Which tiles read an input at one place, and how many of a long sequence do."""

from __future__ import annotations

from typing import Any

import pytest

from flashgen.analysis.facts import facts_of
from flashgen.analysis.uniform import Uniform
from flashgen.lang.evaluate import evaluator
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


# Each reads elements at pairs that are one in some tiles of 4 x 8 of 24 queries and 40 keys.
READS = {
    "one": "t[h, clamp(q - k, -4, 4) + 4]",
    "two": "t[h, clamp(q - k, -4, 4) + 4] + u[clamp(q - 2 * k, -30, 30) + 30]",
    "two, the narrow one last": "u[clamp(q - 2 * k, -30, 30) + 30] * t[h, clamp(q - k, -4, 4) + 4]",
    "by blocks": "t[h, q // 6 + k // 16] * k + u[k // 16 + 3 * (q // 12)]",
    "at an element": "t[h, clamp(q - k + near[b], -4, 4) + 4]",
    "at an element of each query": "t[h, clamp(q - k + near[q % 2], -4, 4) + 4]",
    "over a row": "t[h, clamp(q - k, -4, 4) + 4] + sum(i, 3, u[clamp(q - k, -4, 4) + 4 + i])",
    "beside the score": "score * t[h, clamp(q - k, -4, 4) + 4] - abs(q - k)",
}


@pytest.mark.parametrize("mask", ["True", "k <= q"])
@pytest.mark.parametrize("align", ["bottom_right", "top_left"])
@pytest.mark.parametrize("name", READS)
def test_where_the_corners_say_so_the_logit_of_each_pair_is_that_of_the_tile(name: str, align: str, mask: str) -> None:
    inputs = {
        "t": {"shape": ["heads", 9], "dtype": "float32"}, "u": {"shape": [70], "dtype": "float32"},
        "near": {"shape": ["batch"], "dtype": "int32"},
    }  # fmt: skip
    read = {key: each for key, each in inputs.items() if f"{key}[" in READS[name]}
    own = facts_of(
        load({"name": "read", "inputs": read, "score": f"score + {READS[name]}", "mask": mask, "align": align})
    )
    if own.uniform is None:
        assert name in ("at an element", "at an element of each query", "over a row")
        return
    logit, in_tile = evaluator(own.logits.pair), evaluator(own.uniform.in_tile(own.logits.pair))
    holds = evaluator(own.uniform.condition)
    # No two elements are alike.
    tensors = {
        "t": [[h + 0.01 * place for place in range(9)] for h in range(2)],
        "u": [0.37 * place for place in range(70)], "near": [1, -2],
    }  # fmt: skip
    sizes = {"b": 1, "h": 1, "kv_h": 0, "batch": 2, "heads": 2, "kv_heads": 1, "q_len": 24, "kv_len": 40}
    sizes |= {"qk": 0.5, "scale": 0.3}
    shift = 16 if align == "bottom_right" else 0
    found = [(q, k) for q in range(shift, 24 + shift, 4) for k in range(0, 40, 8)]
    uniform = 0
    for q_first, k_first in found:
        corners = {"q_first": q_first, "q_last": q_first + 3, "k_first": k_first, "k_last": k_first + 7}
        if holds(sizes | corners, {}):
            uniform += 1
            pairs = [sizes | corners | {"q": q_first + i, "k": k_first + j} for i in range(4) for j in range(8)]
            assert all(logit(pair, tensors) == in_tile(pair, tensors) for pair in pairs)
    assert 0 < uniform < len(found)
