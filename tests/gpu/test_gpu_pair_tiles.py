"""Biases of each pair that lie in rows, on a Hopper GPU: beside every kind of mask, in both passes, at any stride, and
beside keys in pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

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
    "padding, and pairs that two share": {
        "inputs": {
            "t": _tensor("batch // 2", "heads", "q_len", "kv_len"),
            "pad": _tensor("batch", "kv_len", dtype="bool"),
        },
        "score": "score + t[b // 2, h, q, k]",
        "mask": "pad[b, k]",
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


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("mask", [{}, {"causal": True}, {"window": {"left": 300}}, {"mask": "pad[b, k]"}])
def test_what_lies_behind_a_row_counts_for_nothing(tmp_path: Path, mask: dict[str, Any], head_dim: int) -> None:
    """Rows of a wider tensor begin where several of their keys are read at once; beyond the last key there is NaN."""
    pad = {"pad": _tensor("batch", "kv_len", dtype="bool")} if "mask" in mask else {}
    found = {"name": "pairs", "inputs": {"t": PAIRS} | pad, "score": "score + t[h, q, k]"} | mask
    module = load_module(generate(load(found), tmp_path))
    heads, q_len, kv_len = 4, 530, 777
    torch.manual_seed(0)
    q, k, v, d_out = (
        torch.randn(2, heads, length, head_dim, dtype=torch.bfloat16, device="cuda")
        for length in (q_len, kv_len, kv_len, q_len)
    )
    wide = torch.full((heads, q_len, 1024), float("nan"), dtype=torch.bfloat16, device="cuda")
    wide[..., :kv_len] = torch.randn(heads, q_len, kv_len)
    given = {"pad": torch.rand(2, kv_len, device="cuda") < 0.8} if pad else {}

    def passes(t: torch.Tensor, deterministic: bool) -> list[torch.Tensor]:
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = module.attention(*leaves, t=t, deterministic=deterministic, **given)
        return [out.detach(), *torch.autograd.grad(out, leaves, d_out)]

    rows = wide[..., :kv_len]
    for deterministic in (False, True):
        found_rows, alone = passes(rows, deterministic), passes(rows.contiguous(), deterministic)
        out, dq, *of_keys = zip(found_rows, alone, strict=True)
        assert all(bool(one.isfinite().all()) for one in found_rows)
        assert all(torch.equal(one, other) for one, other in (out, *of_keys))
        # Parts of dq are added up in the order in which they come, unless it is always the same.
        assert deterministic <= torch.equal(*dq)
        assert float((dq[0] - dq[1]).float().norm() / dq[1].float().norm()) < 2**-8
