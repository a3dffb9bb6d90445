"""Scores that come out as minus infinity: their pairs are hidden as if masked, with whatever derivative there."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from flashgen.codegen import generate, load_module
from flashgen.spec import load

BATCH, HEADS, Q_LEN, KV_LEN, HEAD_DIM = 2, 2, 20, 37, 16
CONFIG = "BM=16 BN=32 num_warps=4 num_stages=1"
BACKWARD = {"backward_kv": f"{CONFIG} fuse_dq=1", "backward_q": CONFIG}
KEEP = {"keep": {"shape": ["batch", "kv_len"], "dtype": "bool"}}
GATE = {"gate": {"shape": ["batch", "kv_len"], "dtype": "float32", "grad": True}}
# A score that hides pairs, and the score and mask that say the same.
SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a choice": (
        {"inputs": KEEP, "score": "score if keep[b, k] else -inf"},
        {"inputs": KEEP, "mask": "keep[b, k]"},
    ),
    "a choice beside a mask": (
        {"inputs": KEEP, "score": "2 * where(keep[b, k], score, -inf) - 0.5 * abs(q - k)", "causal": True},
        {"inputs": KEEP, "score": "2 * score - 0.5 * abs(q - k)", "mask": "keep[b, k]", "causal": True},
    ),
    "whole rows": (
        {"score": "where(q % 3 == 0, score, -inf) + 0.1 * q"},
        {"score": "score + 0.1 * q", "mask": "q % 3 == 0"},
    ),
    "a slope that is no number": (
        {"inputs": KEEP, "score": "log(sigmoid(score) * where(keep[b, k], 1.0, 0.0))"},
        {"inputs": KEEP, "score": "log(sigmoid(score))", "mask": "keep[b, k]"},
    ),
    "an infinite derivative by an input": (
        {"inputs": GATE, "score": "score + log(gate[b, k])"},
        {"inputs": GATE, "score": "score + log(gate[b, k])", "mask": "gate[b, k] > 0.0"},
    ),
}  # fmt: skip


def call() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(BATCH, HEADS, n, HEAD_DIM, generator=random) for n in (Q_LEN, KV_LEN, KV_LEN))
    keep = torch.rand(BATCH, KV_LEN, generator=random) < 0.6
    # A whole batch element that nothing is seen of.
    keep[1] = False
    return {"q": q, "k": k, "v": v, "keep": keep, "gate": (torch.rand(BATCH, KV_LEN, generator=random) + 0.1) * keep}


def answers(function: Any, leaves: dict[str, torch.Tensor], **keywords: Any) -> list[torch.Tensor]:
    """out, lse and the gradients of all that has one."""
    out, lse = function(**leaves, return_lse=True, **keywords)
    random = torch.Generator().manual_seed(5)
    d_out = torch.randn(out.shape, generator=random).to(out.dtype)
    learned = [leaf for leaf in leaves.values() if leaf.requires_grad]
    seen = torch.where(lse == -math.inf, 0.0, lse)
    return [out, lse, *torch.autograd.grad([out, seen], learned, [d_out, torch.ones_like(seen)])]


def built(spec: dict[str, Any], folder: Path) -> ModuleType:
    return load_module(generate(load({"name": "hides", **spec}), folder))


@pytest.mark.parametrize("name", SAME)
def test_it_is_as_if_masked(tmp_path: Path, name: str) -> None:
    hiding, masked = SAME[name]
    tensors = {n: t for n, t in call().items() if n in ("q", "k", "v") or n in hiding.get("inputs", {})}
    leaves = {n: t.clone().requires_grad_(t.is_floating_point()) for n, t in tensors.items()}
    found = answers(built(hiding, tmp_path).attention, leaves, config=CONFIG, backward_config=BACKWARD)
    expected = answers(built(masked, tmp_path / "masked").attention, leaves, config=CONFIG, backward_config=BACKWARD)
    assert bool((found[1] == -math.inf).any())
    for mine, right in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("score", ["w[h] * tanh(x[b, k])", "w[h] * cos(x[b, q])", "w[h] * (x[b, k] > 0)"])
def test_hidden_pairs_may_read_what_is_no_number(tmp_path: Path, score: str) -> None:
    """As the features of padding are: a function that has bounds makes nothing finite of them."""
    place = "q" if "q" in score else "k"
    x = {"shape": ["batch", "kv_len"], "dtype": "float32"}
    inputs = {**KEEP, "x": x, "w": {"shape": ["heads"], "dtype": "float32", "grad": True}}
    spec = {"inputs": inputs, "align": "top_left", "score": f"score + {score}", "mask": f"keep[b, {place}]"}
    tensors = call()
    keep = tensors["keep"]
    leaves = {n: tensors[n].requires_grad_() for n in "qkv"} | {"w": torch.tensor([0.5, -1.0]).requires_grad_()}
    attention = built(spec, tmp_path).attention

    def found(padding: float) -> list[torch.Tensor]:
        random = torch.Generator().manual_seed(6)
        x = torch.randn(BATCH, KV_LEN, generator=random).masked_fill(~keep, padding)
        given = leaves | {"keep": keep, "x": x}
        return answers(attention, given, config=CONFIG, backward_config=BACKWARD)

    for mine, right in zip(found(math.nan), found(0.0), strict=True):
        assert torch.equal(mine, right)


def test_scores_below_a_threshold_of_the_row(tmp_path: Path) -> None:
    """The five largest of each row."""
    spec = {
        "inputs": {"kth": {"shape": ["batch", "heads", "q_len"], "dtype": "float32"}},
        "align": "top_left",
        "score": "score if score >= kth[b, h, q] else -inf",
    }
    tensors = call()
    leaves = {n: tensors[n].clone().requires_grad_() for n in "qkv"}
    scores = (tensors["q"] @ tensors["k"].mT / math.sqrt(HEAD_DIM)).detach()
    top = scores.topk(6, -1).values
    # Between the fifth and the sixth, so that rounding moves none across; one row is above all.
    kth = (top[..., 4] + top[..., 5]) / 2
    kth[0, 1, 7] = 1e3
    found = answers(built(spec, tmp_path).attention, leaves | {"kth": kth}, config=CONFIG, backward_config=BACKWARD)

    def truth(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, return_lse: bool) -> tuple[torch.Tensor, torch.Tensor]:
        shown = scores >= kth[..., None]
        x = (q @ k.mT / math.sqrt(HEAD_DIM)).masked_fill(~shown, -1e300)
        out, lse = x.softmax(-1) @ v, x.logsumexp(-1)
        empty = ~shown.any(-1)
        return out.masked_fill(empty[..., None], 0.0), lse.masked_fill(empty, -math.inf)

    wide = {n: t.detach().double().requires_grad_() for n, t in leaves.items()}
    for mine, right in zip(found, answers(truth, wide), strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=1e-4, atol=1e-5)
