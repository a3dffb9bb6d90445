"""flex_attention by generated kernels beside torch's own, run eagerly in float64: results, LSE and gradients."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import flex_mods as mods
import numpy as np
import pytest
import torch
from flex_beside_torch import by_torch
from torch.nn.attention import flex_attention as of_torch

from flashgen.flex import flex_attention, kernels

BATCH, HEADS, LENGTH = mods.BATCH, mods.HEADS, mods.LENGTH
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def tensors(
    q_len: int = LENGTH, kv_len: int = LENGTH, kv_heads: int = HEADS, kv_batch: int = BATCH
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(q_len + kv_len)
    shapes = (BATCH, HEADS, q_len, 16), (kv_batch, kv_heads, kv_len, 16), (kv_batch, kv_heads, kv_len, 16)
    return [torch.randn(shape, generator=generator).to(DEVICE).requires_grad_() for shape in shapes]


def block_mask(mask: Callable[..., Any] | None, q_len: int = LENGTH, kv_len: int = LENGTH) -> Any:
    if mask is None:
        return None
    return of_torch.create_block_mask(mask, BATCH, HEADS, q_len, kv_len, device=DEVICE, BLOCK_SIZE=16)


def expected(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, score: Any, mask: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """What torch's eager flex_attention computes in float64."""
    return by_torch(score, mask)(q.double(), k.double(), v.double(), return_lse=True)


def compare(score: Any, mask: Any, given: list[torch.Tensor], learned: tuple[torch.Tensor, ...] = ()) -> None:
    q, k, v = given
    blocks = block_mask(mask, q.shape[2], k.shape[2])
    out, lse = flex_attention(q, k, v, score, blocks, enable_gqa=True, return_lse=True)
    want, want_lse = expected(q, k, v, score, mask)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), want_lse, rtol=1e-5, atol=1e-5)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    wanted = torch.autograd.grad((want * weight).sum(), [*given, *learned])
    found = torch.autograd.grad((out * weight).sum(), [*given, *learned])
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other.to(one.dtype), rtol=2e-4, atol=2e-5)


def plain() -> list[torch.Tensor]:
    return tensors()


@pytest.mark.parametrize("name", ["document", "gemma2", "hidden_tail", "natten", "bucketed"])
def test_it_computes_what_torch_does(name: str) -> None:
    mod = next(each for each in mods.MODS if each.name == name)
    compare(mod.score, mod.mask, plain())


def test_captured_tensors_have_gradients() -> None:
    bias = torch.randn(HEADS, 2 * LENGTH, generator=torch.Generator().manual_seed(0)).to(DEVICE).requires_grad_()
    compare(lambda score, b, h, q, k: score + bias[h, q - k + LENGTH], mods.causal, plain(), (bias,))


@pytest.mark.parametrize("derived", [False, True], ids=["as it is", "derived"])
@pytest.mark.parametrize("by_autograd", [True, False], ids=["autograd", "torch.func.grad"])
def test_captured_tensors_that_are_mapped_have_gradients(by_autograd: bool, derived: bool) -> None:
    """As the weights of several models that torch.func.vmap runs at once."""
    q, k, v = (each.detach() for each in plain())

    def model(bias: torch.Tensor, attend: Callable[..., Any] = flex_attention) -> torch.Tensor:
        return attend(q, k, v, lambda score, b, h, q, k: score + (bias.exp()[h] if derived else bias[h]) * (q - k))

    def loss(biases: torch.Tensor) -> torch.Tensor:
        return torch.vmap(model)(biases).square().sum()

    biases = torch.randn(3, HEADS, generator=torch.Generator().manual_seed(0)).mul(0.1).to(DEVICE).requires_grad_()
    each_alone = sum(model(bias, of_torch.flex_attention).square().sum() for bias in biases)
    (wanted,) = torch.autograd.grad(each_alone, biases)
    found = torch.autograd.grad(loss(biases), biases)[0] if by_autograd else torch.func.grad(loss)(biases.detach())
    torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-5)


def test_a_mapped_tensor_may_decide_that_a_number_stays() -> None:
    """Whether a tensor in a number's place gives the same is seen by the values of what is made of both."""
    q, k, v = (each.detach() for each in plain())
    number = 2

    def model(bias: torch.Tensor, attend: Callable[..., Any] = flex_attention) -> torch.Tensor:
        def mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            return score + bias.roll(2 if torch.is_tensor(number) else 1)[h] * (q - k) * number

        return attend(q, k, v, mod)

    biases = torch.linspace(-0.2, 0.2, 3 * HEADS, device=DEVICE).view(3, HEADS)
    wanted = torch.stack([model(bias, of_torch.flex_attention) for bias in biases])
    torch.testing.assert_close(torch.vmap(model)(biases), wanted, rtol=1e-4, atol=1e-5)


def test_what_is_made_of_captured_tensors_has_gradients_in_a_transform_and_later() -> None:
    """The first call decides what is built."""
    q, k, v = (each.detach() for each in plain())

    def loss(bias: torch.Tensor, attend: Callable[..., Any] = flex_attention) -> torch.Tensor:
        return attend(q, k, v, lambda score, b, h, q, k: score + bias.sin()[h] * (q - k)).square().sum()

    bias = torch.linspace(-0.2, 0.2, HEADS, device=DEVICE, requires_grad=True)
    (wanted,) = torch.autograd.grad(loss(bias, of_torch.flex_attention), bias)
    torch.testing.assert_close(torch.func.grad(loss)(bias.detach()), wanted, rtol=2e-4, atol=2e-5)
    torch.testing.assert_close(torch.autograd.grad(loss(bias), bias)[0], wanted, rtol=2e-4, atol=2e-5)


def test_a_captured_row_may_have_no_number() -> None:
    def seen(tokens: torch.Tensor) -> Any:
        return lambda b, h, q, k: (q >= k) | (k == tokens).any()

    def scored(weights: torch.Tensor) -> Any:
        return lambda score, b, h, q, k: torch.where((weights > 0.5).all(), score + weights.sum() * k, score)

    for length in (2, 0, 1):
        weights = torch.linspace(1, 2, length, device=DEVICE)
        compare(scored(weights), seen(torch.arange(length, device=DEVICE) + 5), plain())


def test_powers_of_integers_are_integers() -> None:
    """Also those that would be fractions, as torch has it."""
    compare(lambda score, b, h, q, k: score + 2 ** (1 - h) + 2 ** (q - k).clamp(-3, 2), None, plain())
    compare(lambda score, b, h, q, k: score + 3 ** (k % 9) % 7 + (-5) ** (k % 6) % 7, None, plain())


def test_queries_stand_at_their_own_index_whatever_the_lengths() -> None:
    """Nine queries over more keys, and more queries than keys, of which some see none."""
    doc = (torch.arange(64) // 5).to(DEVICE)

    def same(b, h, q, k):
        return (doc[q] == doc[k]) & (q >= k)

    for q_len, kv_len in ((9, 21), (21, 9)):
        compare(None, same, tensors(q_len, kv_len, kv_heads=2))


def test_keys_of_one_sequence_serve_all() -> None:
    compare(None, mods.causal, tensors(kv_batch=1))


@pytest.mark.parametrize("scale", [np.float32(0.25), np.int64(2), torch.tensor(0.25), torch.tensor([0.25])], ids=repr)
def test_a_scale_may_be_a_number_of_another_kind(scale: Any) -> None:
    q, k, v = plain()
    assert torch.equal(flex_attention(q, k, v, scale=scale), flex_attention(q, k, v, scale=float(scale)))


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (torch.ones(2), r"scale is a tensor \[2\] on cpu; expected a number"),
        (
            torch.tensor(0.5, requires_grad=True),
            r"scale is a tensor \[\] on cpu with a gradient; .*Multiply query by it",
        ),
        (torch.tensor(0.5, device="meta"), r"scale is a tensor \[\] on meta; .*would wait"),
    ],
    ids=["many", "learned", "elsewhere"],
)
def test_a_scale_that_is_no_number_at_hand_is_refused(scale: torch.Tensor, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        flex_attention(*plain(), scale=scale)


def scaled(weight: float, bias: torch.Tensor) -> Callable[..., torch.Tensor]:
    return lambda score, b, h, q, k: score * weight + bias[h]


def with_root(number: int) -> Callable[..., torch.Tensor]:
    return lambda score, b, h, q, k: score * float(np.asarray(number) ** 0.5)


def test_a_number_that_left_torch_builds_anew(traces: list[Any]) -> None:
    q, k, v = plain()
    for number, count in ((4, 1), (9, 2), (4, 2)):
        out = flex_attention(q, k, v, with_root(number))
        torch.testing.assert_close(out.double(), expected(q, k, v, with_root(number), None)[0], rtol=1e-5, atol=1e-5)
        assert len(traces) == count


def test_other_values_of_the_same_kind_build_nothing_anew(traces: list[Any]) -> None:
    q, k, v = plain()
    for weight in (0.5, 2.0):
        bias = torch.full((HEADS,), weight, device=DEVICE)
        mod = scaled(weight, bias)
        out = flex_attention(q, k, v, mod)
        torch.testing.assert_close(out.double(), expected(q, k, v, mod, None)[0], rtol=1e-5, atol=1e-5)
    assert len(traces) == 1
    flex_attention(q, k, v, scaled(1, bias))
    assert len(traces) == 2
    flex_attention(q, k, v, scaled(1, bias.requires_grad_()))
    assert len(traces) == 3


def test_a_variable_that_is_assigned_anew_is_read_anew(traces: list[Any]) -> None:
    q, k, v = plain()
    reach, slopes = 3, mods.slopes

    def mod(score, b, h, q, k):
        return torch.where(q - k < reach, score * slopes[h], -float("inf"))

    for reach, slopes in ((3, mods.slopes), (7, mods.slopes), (7, 1 - mods.slopes), (-1, mods.slopes)):  # noqa: B007
        slopes = slopes.to(DEVICE)
        out = flex_attention(q, k, v, mod)
        torch.testing.assert_close(out.double(), expected(q, k, v, mod, None)[0], rtol=1e-5, atol=1e-5)
    # The sign of an integer is of its kind.
    assert len(traces) == 2


def test_a_number_that_decides_builds_anew(traces: list[Any]) -> None:
    q, k, v = plain()
    for times, count in ((1, 1), (2, 2), (1, 2)):
        mod = mods.polynomial(times)
        out = flex_attention(q, k, v, mod)
        torch.testing.assert_close(out.double(), expected(q, k, v, mod, None)[0], rtol=1e-5, atol=1e-5)
        assert len(traces) == count


def test_a_size_that_is_asked_for_builds_anew(traces: list[Any]) -> None:
    q, k, v = plain()
    for half, count in ((4, 1), (9, 2), (4, 2)):
        table = torch.randn(HEADS, 2 * half + 1, device=DEVICE)

        def mod(score, b, h, q, k, table=table):
            middle = table.shape[1] // 2
            return score + table[h, (q - k).clamp(-middle, middle) + middle]

        out = flex_attention(q, k, v, mod)
        torch.testing.assert_close(out.double(), expected(q, k, v, mod, None)[0], rtol=1e-5, atol=1e-5)
        assert len(traces) == count


def test_a_process_that_is_forked_while_a_thread_builds_builds_too(monkeypatch: pytest.MonkeyPatch) -> None:
    build, is_building, may_end = kernels._built, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        is_building.set()
        assert may_end.wait(30)
        return build(*arguments)

    monkeypatch.setattr(kernels, "_built", slow)
    with ThreadPoolExecutor(1) as pool:
        built = pool.submit(kernels.kernels_for, lambda score, b, h, q, k: score + 0.5 * q, None, False)
        assert is_building.wait(30)
        child = os.fork()
        if not child:
            os._exit(0 if kernels._building.acquire(timeout=5) else 1)
        may_end.set()
        assert os.waitpid(child, 0)[1] == 0
        built.result()


def test_what_is_asked_for_comes_back() -> None:
    q, k, v = plain()
    out, lse = flex_attention(q, k, v, return_lse=True)
    same, aux = flex_attention(q, k, v, return_aux=of_torch.AuxRequest(lse=True))
    assert torch.equal(out, same)
    assert torch.equal(lse, aux.lse)
    assert isinstance(aux, of_torch.AuxOutput) and aux.max_scores is None
    _, aux = flex_attention(q, k, v, mods.softcap, return_aux=of_torch.AuxRequest(lse=True, max_scores=True))
    score = mods.softcap(q @ k.mT * q.shape[-1] ** -0.5, 0, 0, 0, 0)  # which reads no positions
    torch.testing.assert_close((aux.lse, aux.max_scores), (score.logsumexp(-1), score.detach().amax(-1)))
    options = {"BLOCK_M": 16, "BLOCK_N": 16, "num_warps": 4, "num_stages": 1, "PRESCALE_QK": True}
    torch.testing.assert_close(flex_attention(q, k, v, kernel_options=options), out)


def test_what_does_not_fit_is_refused() -> None:
    q, k, v = tensors(kv_heads=2)
    with pytest.raises(ValueError, match="enable_gqa=True"):
        flex_attention(q, k, v)
    with pytest.raises(ValueError, match="return_aux"):
        flex_attention(q, q, q, return_lse=True, return_aux=of_torch.AuxRequest(lse=True))
    with pytest.raises(ValueError, match="block_mask is for lengths"):
        flex_attention(q, k, v, None, block_mask(mods.causal, 16, LENGTH), enable_gqa=True)
    of_three = of_torch.create_block_mask(of_torch.noop_mask, BATCH + 1, None, LENGTH, LENGTH, device=DEVICE)
    with pytest.raises(ValueError, match=r"blocks of 3 sequences and 1 heads; expected those of 2 or 1, and of 4 or 1"):
        flex_attention(q, k, v, None, of_three, enable_gqa=True)
    with pytest.raises(ValueError, match="key has shape"):
        flex_attention(q, k[0], v[0])
    with pytest.raises(TypeError, match="value is list"):
        flex_attention(q, k, [v])
    with pytest.raises(TypeError, match="kernel_options is list; expected a mapping"):
        flex_attention(q, q, q, kernel_options=["BLOCK_M"])
    with pytest.raises(TypeError, match="block_mask is function; expected a BlockMask"):
        flex_attention(q, k, v, None, mods.causal)
