"""The digest follows the meaning of a spec, not its form."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashgen.spec import digest, load

BASE: dict[str, Any] = {
    "name": "a",
    "causal": True,
    "softcap": 30.0,
    "params": {"W": 64, "limit": {"value": 2.0, "runtime": True}},
    "inputs": {
        "rel": {"shape": ["heads", "2*W + 1"], "dtype": "float32", "grad": True},
        "doc": {"shape": ["batch", "kv_len"], "dtype": "int32"},
    },
    "let": {"d": "q - k"},
    "score": "min(score + rel[h, clamp(d, -W, W) + W], limit)",
    "mask": "doc[b, q] == doc[b, k]",
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=25)
@given(st.permutations(list(BASE)), st.booleans(), st.integers(20, 200))
def test_form_does_not_matter(tmp_path: Path, order: list[str], flow: bool, width: int) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        yaml.safe_dump({key: BASE[key] for key in order}, default_flow_style=flow, width=width, sort_keys=False)
    )
    assert digest(load(path)) == digest(load(BASE))


@pytest.mark.parametrize(
    "change",
    [
        {"name": "b"},
        {"description": "Another."},
        {"dtype": "float32"},
        {"head_dim": [40]},
        {"tune": {"shapes": [{"batch": 1, "heads": 1, "q_len": 8}]}},
        {"tune": {"inputs": {"doc": {"segments": 3}}}},
        {"let": {"e": "q - k"}, "score": "min(score + rel[h, clamp(e, -64, W) + (60 + 4)], limit)"},
        {"let": {}, "score": "min((score) + rel[(h), clamp(q - k, -W, W) + W], limit)"},
        {"causal": False, "mask": "(k <= q) & (doc[b, q] == doc[b, k])"},
    ],
    ids=str,
)
def test_what_changes_no_meaning(change: dict[str, Any]) -> None:
    assert digest(load(BASE | change)) == digest(load(BASE))


@pytest.mark.parametrize(
    "change",
    [
        {"causal": False},
        {"softcap": 31.0},
        {"align": "top_left"},
        {"sink": "learned"},
        {"bias": "alibi"},
        {"params": {"W": 65, "limit": {"value": 2.0, "runtime": True}}},
        {"params": {"W": 64, "limit": {"value": 3.0, "runtime": True}}},
        {"params": {"W": 64, "limit": {"value": 2, "runtime": True}}},
        {"params": {"W": 64, "limit": 2.0}},
        {"inputs": BASE["inputs"] | {"rel": BASE["inputs"]["rel"] | {"grad": False}}},
        {"inputs": BASE["inputs"] | {"rel": BASE["inputs"]["rel"] | {"dtype": "bfloat16"}}},
        {"inputs": BASE["inputs"] | {"rel": BASE["inputs"]["rel"] | {"shape": ["heads", "2*W + 2"]}}},
        {"inputs": BASE["inputs"] | {"rel": BASE["inputs"]["rel"] | {"shape": ["heads", "reach"]}}},
        {"mask": "doc[b, k] == doc[b, q]"},
        {"allow_tf32": True},
        {"approximate": False},
        {"dropout": 0.1},
    ],
    ids=str,
)
def test_what_changes_the_meaning(change: dict[str, Any]) -> None:
    assert digest(load(BASE | change)) != digest(load(BASE))


def test_the_probability_of_dropout_is_a_default_and_no_meaning() -> None:
    assert digest(load(BASE | {"dropout": 0.1})) == digest(load(BASE | {"dropout": 0.5}))


# Sugar, and the same expressions over an input that has no default, or whose dimensions are no 1.
TWINS = {
    "a default": (
        {"bias": "alibi"},
        {
            "inputs": {"slopes": {"shape": ["heads"], "dtype": "float32", "grad": True}},
            "score": "score - slopes[h] * abs(q - k)",
        },
    ),
    "dimensions that may be 1": (
        {"block_sparse": {"block_q": 128, "block_kv": 64}},
        {
            "inputs": {
                "block_mask": {
                    "shape": ["batch", "heads", "(q_len + 127) // 128", "(kv_len + 63) // 64"], "dtype": "bool",
                }
            },
            "mask": "block_mask[b, h, (q - (kv_len - q_len)) // 128, k // 64]",
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"score": "score + t[h] - 2 * u[h]"}, {"score": "score + u[h] - 2 * t[h]"}),
        ({"mask": "any(i, 3, t[i] > u[i] + q - k)"}, {"mask": "all(i, 3, t[i] > u[i] + q - k)"}),
        ({"mask": "(t[h] <= q - k) | (u[h] <= k)"}, {"mask": "(t[h] <= q - k) & (u[h] <= k)"}),
    ],
)
def test_other_expressions_over_the_same_inputs_mean_something_else(one: dict[str, Any], other: dict[str, Any]) -> None:
    inputs = {name: {"shape": ["heads"], "dtype": "float32"} for name in ("t", "u")}
    assert digest(load({"name": "a", "inputs": inputs, **one})) != digest(
        load({"name": "a", "inputs": inputs, **other})
    )


@pytest.mark.parametrize("name", TWINS)
def test_what_a_caller_may_leave_out_is_of_the_meaning(name: str) -> None:
    sugar, spelled = (load({"name": "a", **spec}) for spec in TWINS[name])
    assert (sugar.score, sugar.mask) == (spelled.score, spelled.mask)
    assert digest(sugar) != digest(spelled)


def test_it_is_the_same_in_every_process() -> None:
    code = "from flashgen.spec import digest, load; print(digest(load({'name': 'a', 'causal': True, 'bias': 'alibi'})))"
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert runs == {digest(load({"name": "a", "causal": True, "bias": "alibi"}))}


def test_shared_lets_stay_shared() -> None:
    lets = {"x0": "q - k"} | {f"x{i}": f"x{i - 1} * x{i - 1}" for i in range(1, 60)}
    assert len(digest(load({"name": "a", "let": lets, "score": "score + x59"}))) == 12
