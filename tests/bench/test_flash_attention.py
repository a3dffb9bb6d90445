"""FlashAttention-4 beside generated kernels: what is asked of it for a variant, with a stand-in for the package."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from gallery import VARIANTS

from flashgen.bench.flash_attention import dense, options_of, packed
from flashgen.bench.installed import Unavailable
from flashgen.problems.calls import make_inputs
from flashgen.problems.packed import ends_of
from flashgen.problems.problem import Problem
from flashgen.spec import load

PROBLEM = Problem(2, 4, 2, 40, 40, 16, 16, "float32")


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ({}, {}),
        ({"causal": True}, {"causal": True}),
        ({"causal": True, "window": {"left": 7}}, {"window_size": (7, 0)}),
        ({"window": {"left": 7, "right": 3}}, {"window_size": (7, 3)}),
        ({"window": {"right": 3}}, {"window_size": (None, 3)}),
        ({"mask": "(k > q - 8) & (k <= q)"}, {"window_size": (7, 0)}),
        ({"softcap": 30.0, "causal": True}, {"softcap": 30.0, "causal": True}),
        ({"score": "30.0 * tanh(score / 30.0)"}, {"softcap": 30.0}),
    ],
)
def test_what_it_has_is_asked_in_its_own_words(spec: dict[str, Any], options: dict[str, Any]) -> None:
    assert options_of(load({"name": "mine", **spec}), PROBLEM) == options


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"bias": "alibi"}, "does not modify scores so"),
        ({"score": "20.0 * tanh(score / 30.0)"}, "does not modify scores so"),
        ({"mask": "k % 3 == q % 3"}, "has no such mask"),
        ({"mask": "k <= 2 * q"}, "has no such mask"),
        ({"sink": "learned"}, "takes sinks in bfloat16 alone"),
        ({"causal": True, "align": "top_left"}, "aligns its masks to the bottom right"),
    ],
)
def test_what_it_has_not_is_said(spec: dict[str, Any], why: str) -> None:
    with pytest.raises(Unavailable, match=why):
        options_of(load({"name": "mine", **spec}), replace(PROBLEM, q_len=20))


def test_where_it_is_not_installed_it_takes_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn.cute", None)
    with pytest.raises(Unavailable, match="is not installed"):
        dense(VARIANTS["causal"], PROBLEM)


@pytest.mark.parametrize("name", ["full", "causal", "sliding_window", "softcap"])
def test_its_calls_compute_the_variant(
    gallery_module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
        """[length, heads, head_dim]."""
        q, k, v = (each.transpose(0, 1) for each in (q, k, v))
        k, v = (each.repeat_interleave(len(q) // len(each), 0) for each in (k, v))
        score = q @ k.mT / q.shape[2] ** 0.5
        if options.get("softcap"):
            score = options["softcap"] * torch.tanh(score / options["softcap"])
        apart = torch.arange(k.shape[1]) - torch.arange(q.shape[1])[:, None]
        left, right = (None, 0) if options.get("causal") else options.get("window_size", (None, None))
        hidden = (apart < -left) if left is not None else torch.zeros_like(apart, dtype=torch.bool)
        hidden |= (apart > right) if right is not None else hidden
        return (score.masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(0, 1)

    def of_batch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> tuple[torch.Tensor, None]:
        return torch.stack([one(*each, **options) for each in zip(q, k, v, strict=True)]), None

    def of_sequences(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int, max_seqlen_k: int, **options: Any,
    ) -> torch.Tensor:  # fmt: skip
        parts = (each.split(cu_seqlens_q.diff().tolist()) for each in (q, k, v))
        return torch.cat([one(*each, **options) for each in zip(*parts, strict=True)])

    stand_in = SimpleNamespace(flash_attn_func=of_batch, flash_attn_varlen_func=of_sequences)
    monkeypatch.setitem(sys.modules, "flash_attn.cute", stand_in)
    variant, module = VARIANTS[name], gallery_module(name)
    call = make_inputs(variant, PROBLEM)
    expected = module.reference(call.q, call.k, call.v)
    torch.testing.assert_close(dense(variant, PROBLEM)(call.q, call.k, call.v), expected)
    tokens = [each.transpose(1, 2).flatten(0, 1) for each in (call.q, call.k, call.v)]
    ends = ends_of([PROBLEM.q_len] * PROBLEM.batch, "cpu")
    found = packed(variant, PROBLEM)(*tokens, ends, ends, PROBLEM.q_len, PROBLEM.kv_len)
    torch.testing.assert_close(found, expected.transpose(1, 2).flatten(0, 1))
