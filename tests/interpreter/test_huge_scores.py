"""Gradients through rows all of whose scores are huge, as those of a sequence that is padding throughout.

The truth is worked out by hand: with p = softmax(x), x being the scores as float32 rounds them, dv = p^T d_out and
dx = p (d_out v^T - sum(d_out out) + d_lse).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from flashgen.codegen import generate, load_module
from flashgen.spec import load

BATCH, HEADS, Q_LEN, KV_LEN, HEAD_DIM, V_HEAD_DIM = 2, 2, 20, 60, 16, 20
SCALE = 0.25
LEAST = torch.finfo(torch.float32).min
CONFIG = "BM=16 BN=32 num_warps=4 num_stages=1"
BACKWARD = {"backward_kv": f"{CONFIG} fuse_dq=1", "backward_q": CONFIG}
# What -1e7 and -1e8 leave of log(60) = 4.09 is rounded, to 4 and up to 8; the others leave all of it or nothing.
HUGE = [-1e4, -1e5, -1e7, -1e8, -1e9, 1e9, LEAST]
ERROR = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
LEARNED = {"pad": {"shape": ["batch", "kv_len"], "dtype": "float32", "grad": True}}
# A row term, which an ordinary score would have left out of the loop; and a mask with a schedule.
SLOPE = "score + pad[b, k] - 0.5 * (q - k)"
SPECS: dict[str, dict[str, Any]] = {
    "plain": {"score": "score + pad[b, k]"},
    "causal": {"score": "score + pad[b, k]", "causal": True},
    "a sink": {"score": "score + pad[b, k]", "causal": True, "sink": "learned"},
    "a slope": {"score": SLOPE, "causal": True},
    "every other key": {"score": "score + pad[b, k]", "mask": "(q - k) % 2 == 0"},
}

Modules = Callable[[str], ModuleType]


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Modules:
    made: dict[str, ModuleType] = {}

    def module(name: str) -> ModuleType:
        if name not in made:
            variant = load({"name": "huge", "inputs": LEARNED, **SPECS[name]})
            made[name] = load_module(generate(variant, tmp_path_factory.mktemp("huge")))
        return made[name]

    return module


@dataclass(frozen=True)
class Drawn:
    """A call whose batch element 0 has nothing but `huge` scores; dot products times SCALE are exact in float32."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    pad: torch.Tensor
    sinks: torch.Tensor
    d_out: torch.Tensor
    d_lse: torch.Tensor

    @property
    def leaves(self) -> dict[str, torch.Tensor]:
        return {name: getattr(self, name) for name in ("q", "k", "v", "pad", "sinks")}


def drawn(huge: float, dtype: torch.dtype, kv_heads: int = 1) -> Drawn:
    random = torch.Generator().manual_seed(3)

    def quarters(*shape: int) -> torch.Tensor:
        return torch.randint(-4, 5, shape, generator=random) / 4

    pad = quarters(BATCH, KV_LEN)
    pad[0] = huge
    return Drawn(
        quarters(BATCH, HEADS, Q_LEN, HEAD_DIM).to(dtype),
        quarters(BATCH, kv_heads, KV_LEN, HEAD_DIM).to(dtype),
        quarters(BATCH, kv_heads, KV_LEN, V_HEAD_DIM).to(dtype),
        pad,
        torch.tensor([huge, 0.5]),
        quarters(BATCH, HEADS, Q_LEN, V_HEAD_DIM).to(dtype),
        quarters(BATCH, HEADS, Q_LEN),
    )


def truth(name: str, call: Drawn) -> dict[str, torch.Tensor]:
    """Gradients by hand, in float64, from scores in float32; 0 for a leaf that the variant does not read."""
    spec, group = SPECS[name], HEADS // call.k.shape[1]
    q = torch.arange(Q_LEN)[:, None] + KV_LEN - Q_LEN
    k = torch.arange(KV_LEN)[None, :]
    keys, values = (t.double().repeat_interleave(group, 1) for t in (call.k, call.v))
    x = (call.q.double() @ keys.mT * SCALE).float() + call.pad[:, None, None]
    x = x - 0.5 * (q - k) if spec["score"] == SLOPE else x
    hidden = k > q if spec.get("causal") else (q - k) % 2 != 0 if "mask" in spec else torch.zeros(1, 1).bool()
    x = x.masked_fill(hidden, -math.inf).double()
    sinks = call.sinks.double()[None, :, None, None].expand(*x.shape[:3], 1)
    every = torch.cat([x, sinks if "sink" in spec else torch.full_like(sinks, -math.inf)], -1).softmax(-1)
    p, of_sink = every[..., :-1], every[..., -1]
    d_out = call.d_out.double()
    less = (d_out * (p @ values)).sum(-1) - call.d_lse.double()
    ds = p * (d_out @ values.mT - less[..., None])
    d_k, d_v = SCALE * ds.mT @ call.q.double(), p.mT @ d_out
    return {
        "q": SCALE * ds @ keys,
        "k": d_k.unflatten(1, (-1, group)).sum(2),
        "v": d_v.unflatten(1, (-1, group)).sum(2),
        "pad": ds.sum((1, 2)),
        "sinks": -(of_sink * less).sum((0, 2)),
    }


def gradients(module: ModuleType, name: str, call: Drawn, **keywords: Any) -> dict[str, torch.Tensor]:
    leaves = {k: t.clone().requires_grad_() for k, t in call.leaves.items() if k != "sinks" or "sink" in SPECS[name]}
    out, lse = module.attention(
        **leaves, scale=SCALE, return_lse=True, config=CONFIG, backward_config=BACKWARD, **keywords
    )
    found = torch.autograd.grad([out, lse], list(leaves.values()), [call.d_out, call.d_lse])
    return dict(zip(leaves, found, strict=True))


def check(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], dtype: torch.dtype) -> None:
    """Each batch element by itself: gradients of the one are a multiple of those of the other."""
    for name, gradient in found.items():
        pairs = [(gradient, expected[name])] if name == "sinks" else zip(gradient, expected[name], strict=True)
        for mine, right in pairs:
            error = float((mine.double() - right).abs().max() / right.abs().max())
            assert error <= ERROR[dtype], f"d_{name} is off by {error:.2g} of its largest"


@pytest.mark.parametrize("huge", HUGE)
@pytest.mark.parametrize("name", SPECS)
def test_a_row_of_huge_scores_has_the_gradients_of_its_weights(modules: Modules, name: str, huge: float) -> None:
    call = drawn(huge, torch.float32)
    check(gradients(modules(name), name, call), truth(name, call), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["causal", "a sink"])
def test_in_16_bits_too(modules: Modules, name: str, dtype: torch.dtype) -> None:
    for huge in (-1e4, -1e8, LEAST):
        call = drawn(huge, dtype, kv_heads=2)
        check(gradients(modules(name), name, call, deterministic=True), truth(name, call), dtype)


def test_a_log_sum_exp_that_is_rounded_up_makes_no_gradient_overflow(modules: Modules) -> None:
    call = drawn(-1e8, torch.float16)
    call.d_out.mul_(4000)
    check(gradients(modules("plain"), "plain", call), truth("plain", call), torch.float16)


@pytest.mark.parametrize("score", ["score if seen[b, k] else -1e9", "score + (0.0 if seen[b, k] else -1e9)"])
def test_a_number_in_the_text_may_be_what_is_huge(tmp_path: Path, score: str) -> None:
    """Each weight is 1/60."""
    seen = {"seen": {"shape": ["batch", "kv_len"], "dtype": "bool"}}
    module = load_module(generate(load({"name": "padded", "inputs": seen, "score": score}), tmp_path))
    call = drawn(-1e9, torch.float32, kv_heads=2)
    v = call.v.clone().requires_grad_()
    out = module.attention(call.q, call.k, v, seen=call.pad != -1e9, config=CONFIG, backward_config=BACKWARD)
    (d_v,) = torch.autograd.grad(out, v, call.d_out)
    torch.testing.assert_close(d_v[0], call.d_out[0].sum(1, keepdim=True).expand_as(v[0]) / KV_LEN)


def test_other_rows_keep_theirs_to_the_bit(modules: Modules) -> None:
    """In 16 bits the factor of an ordinary row is lost beside d_out."""
    ordinary, huge = (drawn(value, torch.bfloat16) for value in (0.0, -1e9))
    expected, found = (gradients(modules("causal"), "causal", call) for call in (ordinary, huge))
    assert all(torch.equal(found[name][1], expected[name][1]) for name in found)
