"""Tiles all of whose pairs read a table at one place, on a Hopper GPU: beside every kind of mask, both passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flashgen.codegen import generate, load_module
from flashgen.problems.problem import Problem
from flashgen.runtime import Config
from flashgen.spec import load
from flashgen.verify import Case, run_case
from flashgen.verify.cases import Backward

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("on_hopper")]

TABLE = {"t": {"shape": ["heads", 17], "dtype": "float32", "grad": True}}
NEAR = "t[h, clamp(q - k, -8, 8) + 8]"
SPECS: dict[str, dict[str, Any]] = {
    "no mask": {"score": f"score + {NEAR}"},
    "a causal mask": {"score": f"score + {NEAR}", "causal": True},
    "a window": {"score": f"score + {NEAR}", "window": {"left": 300, "right": 20}},
    "documents": {
        "inputs": TABLE | {"doc": {"shape": ["batch", "kv_len"], "dtype": "int32"}},
        "score": f"score + {NEAR}",
        "mask": "doc[b, q] == doc[b, k]",
    },
    "a number of each key": {
        "inputs": TABLE | {"u": {"shape": ["kv_len"], "dtype": "float32"}},
        "score": f"score + {NEAR} * u[k]",
        "causal": True,
    },
    "a softcap": {"score": f"score + {NEAR}", "softcap": 5.0, "approximate": True},
    "a tanh of the sum": {"score": f"3.0 * tanh((score + {NEAR}) / 3.0)"},
    "no score": {"score": NEAR, "align": "top_left"},
    "no score, with dropout": {"score": NEAR, "causal": True, "dropout": 0.1},
    "blocks": {
        "inputs": {"t": {"shape": ["heads", 4, 4], "dtype": "float32", "grad": True}},
        "score": "score + t[h, min(q // 192, 3), min(k // 256, 3)]",
    },
    "as many blocks as there are": {
        "inputs": {"t": {"shape": ["heads", "(kv_len + 63) // 64"], "dtype": "float32", "grad": True}},
        "score": "score + t[h, max((q - k) // 64, 0)]",
        "causal": True,
    },
    "a distance in terms of a call's number": {
        "params": {"reach": {"value": 5, "runtime": True}},
        "score": "score + t[h, clamp(q - k, -reach, reach) + 8] + 0.01 * abs(q - k)",
    },
}
# Both ways; one whose last tile of queries has no rows for the second consumer.
SHAPES = ((530, 1100), (64, 900), (1000, 130))


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", SPECS)
def test_it_is_what_its_formula_says(tmp_path: Path, name: str, head_dim: int) -> None:
    variant = load({"name": "uniform", "inputs": TABLE} | SPECS[name])
    module = load_module(generate(variant, tmp_path))
    configs = (None, Config(128, 64, 4, 2, "hopper", ping_pong=0))
    cases = [
        Case(f"{q_len} x {kv_len}, {way}, {config}", problem, config, return_max=True, backward=way)
        for q_len, kv_len in SHAPES
        for problem in [Problem(2, 4, 2, q_len, kv_len, head_dim, head_dim, "bfloat16")]
        for config in configs
        for way in (None, Backward(), Backward(deterministic=True))
        if config is None or way is None
    ]
    wrong = [str(result) for case in cases if not (result := run_case(module, variant, case, "cuda")).ok]
    assert not wrong, "\n".join(wrong)
