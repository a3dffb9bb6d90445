"""The eager formula around a variant's own against the definition, one row after the other."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from flashgen.codegen import generate, load_module
from flashgen.runtime import eager_attention
from flashgen.spec import load

HEADS, KV_HEADS, DIM = 4, 2, 3
WEIGHTS = torch.tensor([0.5, -1.0, 0.0, 2.0], dtype=torch.float64)


def formula(score, b, h, kv_h, q, k):  # type: ignore[no-untyped-def]
    return score + 0.125 * b + WEIGHTS.to(score.dtype)[h] * (q - k) + kv_h, (k <= q) & ((k + h) % 3 != 0)


def by_definition(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bottom_right: bool, scale: float, sinks: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)
    lse = torch.full(q.shape[:3], -math.inf, dtype=torch.float64)
    for b in range(q.shape[0]):
        for h in range(HEADS):
            kv_h = h // (HEADS // KV_HEADS)
            for i in range(q.shape[2]):
                position = i + (k.shape[2] - q.shape[2] if bottom_right else 0)
                scores = {
                    j: float(scale * q[b, h, i] @ k[b, kv_h, j] + 0.125 * b + WEIGHTS[h] * (position - j) + kv_h)
                    for j in range(k.shape[2])
                    if j <= position and (j + h) % 3 != 0
                }
                if scores:
                    total = sum(map(math.exp, scores.values())) + (0 if sinks is None else math.exp(sinks[h]))
                    lse[b, h, i] = math.log(total)
                    out[b, h, i] = sum(math.exp(s) / total * v[b, kv_h, j] for j, s in scores.items())
    return out, lse


@pytest.mark.parametrize("bottom_right", [True, False])
@pytest.mark.parametrize(("q_len", "kv_len"), [(5, 5), (3, 8), (8, 3), (1, 6), (6, 1)])
@pytest.mark.parametrize("sink", [False, True])
def test_it_is_the_definition(bottom_right: bool, q_len: int, kv_len: int, sink: bool) -> None:
    generator = torch.Generator().manual_seed(q_len * 10 + kv_len)
    q, k, v = (
        torch.randn(2, heads, length, DIM, generator=generator, dtype=torch.float64)
        for heads, length in ((HEADS, q_len), (KV_HEADS, kv_len), (KV_HEADS, kv_len))
    )
    sinks = torch.randn(HEADS, generator=generator) if sink else None
    found = eager_attention(q, k, v, formula, bottom_right=bottom_right, scale=0.7, return_lse=True, sinks=sinks)
    expected = by_definition(q, k, v, bottom_right, 0.7, sinks)
    assert found[0].dtype == found[1].dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_it_keeps_the_dtype_and_sums_in_float32(dtype: torch.dtype) -> None:
    q = torch.randn(1, HEADS, 6, DIM, generator=torch.Generator().manual_seed(0)).to(dtype)
    out, lse = eager_attention(q, q[:, ::2], q[:, ::2], formula, bottom_right=True, scale=None, return_lse=True)
    exact = eager_attention(
        *(t.double() for t in (q, q[:, ::2], q[:, ::2])),
        formula,
        bottom_right=True,
        scale=1 / math.sqrt(DIM),
        return_lse=False,
    )
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=40 * torch.finfo(dtype).eps)


def test_what_is_hidden_has_no_gradient_whatever_its_score() -> None:
    def logarithmic(score, b, h, kv_h, q, k):  # type: ignore[no-untyped-def]
        return score * torch.log((q - k + 1).to(score.dtype)), k <= q

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 5, DIM, generator=generator, dtype=torch.float64) for _ in range(3))
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    out = eager_attention(*leaves, logarithmic, bottom_right=True, scale=1.0, return_lse=False)
    found = torch.autograd.grad(out.square().sum(), leaves)
    others = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    rows = []
    for i in range(5):
        distance = torch.arange(i + 1, 0, -1, dtype=torch.float64)
        score = others[0][:, :, i : i + 1] @ others[1][:, :, : i + 1].mT * distance.log()
        rows.append(score.softmax(-1) @ others[2][:, :, : i + 1])
    expected = torch.autograd.grad(torch.cat(rows, 2).square().sum(), others)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def biased(score, b, h, kv_h, q, k, bias):  # type: ignore[no-untyped-def]
    return score + bias * torch.log((q - k + 1).to(score.dtype)), k <= q


def test_learned_inputs_without_values_and_within_transforms() -> None:
    """There nothing can depend on which pairs are visible."""
    q = torch.randn(1, 2, 5, DIM)
    bias = torch.zeros(())

    def total(bias: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        found = eager_attention(
            q, q, q, partial(biased, bias=bias), bottom_right=True, scale=1.0, return_lse=True
        )  # fmt: skip
        return found[0].sum() + found[1].sum()

    plain = torch.autograd.grad(total(learned := bias.clone().requires_grad_(), q), learned)[0]
    assert bool(plain.isfinite())
    assert torch.func.vmap(total, (None, 0))(bias, q[None]).shape == (1,)
    assert torch.func.grad(total, 1)(bias, q).shape == q.shape
    assert total(bias.to("meta").requires_grad_(), q.to("meta")).is_meta
    with FakeTensorMode() as mode:
        fakes = mode.from_tensor(learned), mode.from_tensor(q)
        assert torch.autograd.grad(total(*fakes), fakes[0])[0].shape == ()


@pytest.mark.parametrize(("q_len", "kv_len"), [(5, 0), (0, 5), (0, 0)])
def test_inputs_along_nothing_are_not_read(q_len: int, kv_len: int) -> None:
    """An index of a query is one too many for an input along no keys."""
    q, k = torch.ones(1, 2, q_len, DIM), torch.ones(1, 2, kv_len, DIM)
    along = torch.ones(1, kv_len, requires_grad=True)
    out, lse = eager_attention(
        q, k, k, lambda score, b, h, kv_h, q, k: (score + along[b, q], along[b, k] > 0), bottom_right=False,
        scale=None, return_lse=True,
    )  # fmt: skip
    assert out.shape == (1, 2, q_len, DIM)
    assert bool((out == 0).all()) and bool((lse == -math.inf).all())
    assert torch.autograd.grad(out.sum(), along, allow_unused=True, materialize_grads=True)[0].shape == along.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("score", [-1e9, 1e9, -3e38])
def test_weights_add_up_to_one_however_large_the_scores(dtype: torch.dtype, score: float) -> None:
    """exp(score - lse) does not: log(6) is lost beside 1e9."""
    q, v = torch.zeros(1, 2, 3, 8, dtype=dtype), torch.arange(1.0, 7.0).to(dtype).view(1, 1, 6, 1).expand(1, 2, 6, 8)
    found = eager_attention(
        q, torch.zeros_like(v), v, lambda x, *_: (x + score, None), bottom_right=True, scale=1.0, return_lse=False
    )
    assert bool((found == 3.5).all())


def test_scores_of_16_bit_inputs_are_float32() -> None:
    """Rounded to bfloat16 before a steep formula, they give weights that are wrong by half."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 40, 64, generator=generator).to(torch.bfloat16) for _ in range(3))
    steep: Any = {"formula": lambda score, *_: (100 * torch.sin(score), None), "bottom_right": True, "scale": 1.0}
    found, lse = eager_attention(q, k, v, **steep, return_lse=True)
    exact, exact_lse = eager_attention(q.double(), k.double(), v.double(), **steep, return_lse=True)
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=1e-2)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=0, atol=1e-2)


@pytest.mark.parametrize("sink", [False, True])
def test_a_pair_of_minus_infinity_is_hidden_as_if_masked(sink: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(1, 2, 5, 4, generator=generator, dtype=torch.float64) for _ in range(3)]
    sinks = torch.randn(2, generator=generator, dtype=torch.float64) if sink else None

    def masked(score, b, h, kv_h, q, k):  # type: ignore[no-untyped-def]
        return score, (k > q) & (k != 1)

    def infinite(score, b, h, kv_h, q, k):  # type: ignore[no-untyped-def]
        # Its derivative is not finite either where it is minus infinity.
        return score + torch.log(((k > q) & (k != 1)).to(score.dtype) * (score / score)), None

    results = []
    for formula in (masked, infinite):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        out, lse = eager_attention(
            *leaves, formula, bottom_right=True, scale=1.0, return_lse=True, sinks=sinks
        )  # fmt: skip
        assert bool((out[:, :, 4] == 0).all()) and bool((lse[:, :, 4] == -math.inf).all())
        found = torch.autograd.grad(out.square().sum() + lse[:, :, :3].sum(), leaves)
        assert bool((found[0][:, :, 4] == 0).all())
        results.append((out, lse, *found))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_less_than_float32_holds_is_hidden_in_float64_too(dtype: torch.dtype) -> None:
    """Two masks of its least number: key 3 has both, and of query 4 nothing is left."""
    least, q = torch.finfo(torch.float32).min, torch.zeros(1, 2, 5, 4, dtype=dtype)
    v = torch.arange(5.0, dtype=dtype).view(1, 1, 5, 1).expand(1, 2, 5, 4).clone().requires_grad_()

    def masked(score, b, h, kv_h, q, k):  # type: ignore[no-untyped-def]
        by_key, by_query = (score.new_tensor(least).where(hidden, 0) for hidden in (k == 3, q == 4))
        return score + by_key + by_key + by_query + by_query, None

    out, lse = eager_attention(q, q, v, masked, bottom_right=True, scale=1.0, return_lse=True)
    assert bool((out[:, :, :4] == 7 / 4).all()) and bool((out[:, :, 4] == 0).all())
    assert bool((lse[:, :, 4] == -math.inf).all())
    (d_v,) = torch.autograd.grad(out[:, :, 4].sum(), v)
    assert not d_v.any()


@pytest.mark.parametrize("differing", ["", "b", "h"])
@pytest.mark.parametrize("lengths", [(5, 5), (1, 1), (3, 8)])
def test_what_is_hidden_gives_learned_inputs_no_gradient(lengths: tuple[int, int], differing: str) -> None:
    """A logarithm of a distance has none of those that the mask hides, nor where it is minus infinity itself.

    So whether all heads and batch elements see the same pairs or not.
    """
    q_len, kv_len = lengths
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(2, 2, n, 4, generator=generator, dtype=torch.float64) for n in (q_len, kv_len, kv_len)]
    results = []
    for clamped in (True, False):
        leaves = [each.clone().requires_grad_() for each in tensors]
        r, power = torch.tensor([0.5, 2.0]).requires_grad_(), torch.tensor(-0.5).requires_grad_()
        leaves += [r, power]

        def formula(score, b, h, kv_h, q, k):  # type: ignore[no-untyped-def]
            distance = (q - k).clamp(1) if clamped else q - k  # noqa: B023
            shown = (k <= q) & (k != 2 + {"b": b, "h": h}.get(differing, 0))
            shown = shown & (q != k) if clamped else shown  # noqa: B023
            return score + r[h] * distance.log() - distance ** (power * (b + 1)), shown  # noqa: B023

        out, lse = eager_attention(*leaves[:3], formula, bottom_right=True, scale=1.0, return_lse=True)  # type: ignore[misc]
        seen = lse[lse > -math.inf]
        found = torch.autograd.grad(out.square().sum() + seen.sum(), leaves, materialize_grads=True)
        results.append((out, lse, *found))
    assert all(bool(each.isfinite().all()) for each in results[0][2:])
    torch.testing.assert_close(*results)


def test_what_no_pair_sees_has_a_gradient_of_zero_whatever_its_derivative() -> None:
    """Minus infinity for every pair of every head: the derivative by a factor of it is infinite."""
    q, factors = torch.ones(1, 2, 3, DIM), torch.ones(2, requires_grad=True)
    out, lse = eager_attention(
        q, q, q, lambda score, b, h, kv_h, q, k: (score + factors[h] * -math.inf, k <= q), bottom_right=True,
        scale=1.0, return_lse=True,
    )  # fmt: skip
    assert bool((out == 0).all()) and bool((lse == -math.inf).all())
    assert torch.autograd.grad(out.sum(), factors)[0].tolist() == [0, 0]


@pytest.mark.parametrize("scale", [2**64, -(2**70), 3])
def test_an_integer_is_a_scale_however_large(scale: int) -> None:
    q, k, v = (torch.randn(1, heads, 4, DIM, dtype=torch.float64) for heads in (HEADS, KV_HEADS, KV_HEADS))
    found, expected = (
        eager_attention(q, k, v, formula, bottom_right=True, scale=number, return_lse=True)
        for number in (scale, float(scale))
    )
    assert all(map(torch.equal, found, expected))


def test_an_integer_beyond_a_float_is_no_scale() -> None:
    q = torch.randn(1, HEADS, 4, DIM)
    with pytest.raises(ValueError, match="scale is an int of 1329 bits; expected a number within a float's range"):
        eager_attention(q, q, q, formula, bottom_right=True, scale=10**400, return_lse=False)


def test_params_are_those_that_attention_takes(tmp_path: Path) -> None:
    params = {"gain": {"value": 1.0, "runtime": True}, "pow": {"value": 2, "runtime": True}}
    spec = {"name": "mine", "params": params, "score": "score * gain + k // pow", "dropout": 0.5}
    module = load_module(generate(load(spec), tmp_path))
    q = torch.ones(1, 1, 4, 8)
    expected = module.reference(q, q, q, gain=3.0, dropout_p=0)
    assert torch.equal(module.reference(q, q, q, gain=3, dropout_p=0), expected)
    with pytest.raises(TypeError, match=r"^pow is 2\.0; expected an int$"):
        module.reference(q, q, q, pow=2.0)
