"""Biases of each pair that lie in rows, on a Hopper GPU: beside every kind of mask, in both passes, at any stride, and
beside keys in pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flashgen.codegen import generate, load_module
from flashgen.problems.problem import Problem
from flashgen.spec import load
from flashgen.verify import Case, run_case
from flashgen.verify.case import packed_case
from flashgen.verify.cases import Backward
from flashgen.verify.paged_cases import PagedCase

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("on_hopper")]


def _tensor(*shape: str | int, dtype: str = "bfloat16", grad: bool = False) -> dict[str, Any]:
    return {"shape": [*shape], "dtype": dtype, **({"grad": True} if grad else {})}


PAIRS = _tensor("heads", "q_len", "kv_len")
SPECS: dict[str, dict[str, Any]] = {
    "no mask": {"inputs": {"t": PAIRS}, "score": "score + t[h, q, k]"},
    "four bytes, learned": {
        "inputs": {"t": _tensor("batch", "heads", "q_len", "kv_len", dtype="float32", grad=True)},
        "score": "score + t[b, h, q, k]",
    },
    "a causal mask, and a bias of each distance": {
        "inputs": {"t": PAIRS, "u": _tensor("heads", 17, dtype="float32", grad=True)},
        "score": "score + t[h, q, k] + u[h, clamp(q - k, -8, 8) + 8]",
        "causal": True,
    },
    "a window, with one byte": {
        "inputs": {"t": _tensor("q_len", "kv_len", dtype="int8")},
        "score": "score + 0.1 * t[q, k]",
        "window": {"left": 300, "right": 20},
    },
    "documents": {
        "inputs": {"t": PAIRS, "doc": _tensor("batch", "kv_len", dtype="int32")},
        "score": "score + t[h, q, k]",
        "mask": "doc[b, q] == doc[b, k]",
    },
    "a tanh of the sum": {"inputs": {"t": PAIRS}, "score": "5.0 * tanh((score + t[h, q, k]) / 5.0)"},
    "a product": {"inputs": {"t": PAIRS}, "score": "score * t[h, q, k]", "align": "top_left"},
    "some rows, in turn": {
        "inputs": {"t": _tensor("heads", 4, "kv_len", dtype="float16")},
        "score": "score + t[h, q % 4, k]",
    },
    "bools, with dropout": {
        "inputs": {"t": _tensor("q_len", "kv_len", dtype="bool")},
        "score": "where(t[q, k], score, 0.5 * score)",
        "dropout": 0.1,
    },
    "two of them": {"inputs": {"t": PAIRS, "u": PAIRS}, "score": "score + t[h, q, k] * u[h, q, k]"},
}
# Both ways; rows that begin at multiples of 16 elements, of 8, and anywhere.
SHAPES = ((530, 1024), (1000, 328), (300, 777))
PACKED = ((300, 512), (640, 640), (1, 200), (129, 384))
# Keys, queries.
PAGED = ((1600, 900), (2048, 2048), (512, 1), (1000, 777))


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", SPECS)
def test_it_is_what_its_formula_says(tmp_path: Path, name: str, head_dim: int) -> None:
    variant = load({"name": "pairs"} | SPECS[name])
    module = load_module(generate(variant, tmp_path))
    ways = (Backward(), Backward(deterministic=True))
    problems = [Problem(2, 4, 2, *shape, head_dim, head_dim, "bfloat16") for shape in SHAPES]
    cases: list[Case | PagedCase] = [
        Case(f"{problem}, {way}", problem, backward=way) for problem in problems for way in ways
    ]
    heads = f"4/2 {head_dim}/{head_dim}"
    cases += [packed_case(f"packed, {way}", PACKED, heads, "bfloat16", backward=way) for way in ways]
    kv_lens, q_lens = zip(*PAGED, strict=True)
    cases.append(PagedCase("paged", kv_lens, q_lens, 4, 2, head_dim, head_dim, block_size=64))
    wrong = [str(result) for case in cases if not (result := run_case(module, variant, case, "cuda")).ok]
    assert not wrong, "\n".join(wrong)
