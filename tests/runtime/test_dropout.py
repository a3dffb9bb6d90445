"""Dropout as callers see it: seeds, the mask that a call used, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from attending import BACKWARD, CONFIG, DEVICE
from dropping import dropping, dropping_module
from torch.utils.checkpoint import checkpoint

from flashgen.codegen import generate, load_module
from flashgen.codegen.export import export_module
from flashgen.spec import load

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
HOW = {"config": CONFIG, "backward_config": BACKWARD}


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return dropping_module("causal", tmp_path_factory.mktemp("dropout"))


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return dropping_module("full", tmp_path_factory.mktemp("dropout"))


@pytest.fixture(scope="module")
def biased(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """Scores that may be huge, and a learned number for each pair."""
    bias = {"shape": ["heads", "q_len", "kv_len"], "dtype": "float32", "grad": True}
    spec = {"name": "biased", "inputs": {"bias": bias}, "score": "score + bias[h, q, k]", "dropout": 0.1}
    return load_module(generate(load(spec), tmp_path_factory.mktemp("dropout")))


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("family", ["forward", "backward_q", "backward_kv"])
def test_a_call_without_dropout_has_the_configs_of_a_variant_without(
    causal: ModuleType, gallery_module: Callable[[str], ModuleType], family: str, head_dim: int
) -> None:
    plain, sizes = gallery_module("causal").VARIANT, ("sm_90", "bfloat16", head_dim, head_dim)
    without = causal.VARIANT.configs_of(family, {"dropout_p": 0.0}).default(*sizes)
    assert without == plain.configs_of(family, {}).default(*sizes)


def test_dropout_has_configs_of_its_own(causal: ModuleType) -> None:
    with_and_without = (causal.VARIANT.configs_of("backward_kv", {"dropout_p": p}) for p in (0.1, 0.0))
    dropping, plain = (configs.default("sm_90", "bfloat16", 128, 128) for configs in with_and_without)
    assert dropping.fuse_dq == 2 and plain.fuse_dq == 1


def qkv(q_len: int = 20, kv_len: int = 27, batch: int = 2) -> Tensors:
    q = torch.randn(batch, 4, q_len, 16, device=DEVICE, requires_grad=True)
    k, v = (torch.randn(batch, 2, kv_len, 16, device=DEVICE, requires_grad=True) for _ in range(2))
    return q, k, v


def seed_of(number: int) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.int64, device=DEVICE)


def weights(module: ModuleType, q: torch.Tensor, k: torch.Tensor, **how: Any) -> torch.Tensor:
    """The weights that a call used: its output, with the identity for v."""
    unit = torch.eye(k.shape[2], device=DEVICE).expand(len(k), k.shape[1], -1, -1).contiguous()
    return module.attention(q, k, unit, config=CONFIG, **how)


@pytest.mark.parametrize("config", ["BM=16 BN=16", "BM=32 BN=64", "BM=64 BN=32", "BM=8 BN=16", "BM=16 BN=8"])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.75, 0.99])
def test_the_mask_is_that_of_the_kernels_whatever_their_tiles(full: ModuleType, config: str, p: float) -> None:
    q, k, _ = qkv(50, 70)
    seed = seed_of(-(2**62) + 5)
    unit = torch.eye(70, device=DEVICE).expand(2, 2, -1, -1).contiguous()
    found = full.attention(q, k, unit, dropout_p=p, dropout_seed=seed, config=f"{config} num_warps=4 num_stages=1")
    assert torch.equal(found != 0, full.dropout_mask(q, k, dropout_p=p, dropout_seed=seed))


def test_the_mask_is_that_of_the_gradients_too(full: ModuleType) -> None:
    q, k, v = qkv()
    seed = seed_of(3)
    out = full.attention(q, k, v, dropout_seed=seed, dropout_p=0.5, **HOW)
    kept = full.dropout_mask(q, k, dropout_seed=seed, dropout_p=0.5)
    # With one row of d_out, dv says which keys that row keeps.
    (dv,) = torch.autograd.grad(out[0, 1, 7, 0], v)
    assert torch.equal(dv[0, 0, :, 0] != 0, kept[0, 1, 7])


# Where scores are large d_out is rounded once more, with what the log-sum-exp has lost; dv is rounded in any case.
@pytest.mark.parametrize(("size", "most"), [(0, (0.25, 1.25)), (2.0**19, (0.75, 1.25)), (2.0**22, (0.75, 1.25))])
@pytest.mark.parametrize("p", [0.1, 0.9])
def test_the_scale_costs_the_gradient_of_out_no_digits(
    biased: ModuleType, p: float, size: float, most: tuple[float, float]
) -> None:
    q, k = torch.zeros(2, 1, 2, 48, 16, dtype=torch.float16, device=DEVICE)
    v, d_out = torch.randn(2, 1, 2, 48, 16, device=DEVICE).half()
    bias = size + torch.randint(-2, 3, (2, 48, 48), device=DEVICE).float()
    leaves, how = (bias.requires_grad_(), v.requires_grad_()), {"dropout_p": p, "dropout_seed": seed_of(3)}
    found = torch.autograd.grad(biased.attention(q, k, v, bias=bias, **how, **HOW), leaves, d_out)
    wide = biased.reference(q.double(), k.double(), v.double(), bias=bias.double(), **how)
    truth = torch.autograd.grad(wide, leaves, d_out.double())
    roundoff = torch.finfo(torch.float16).eps / 2
    for one, other, share in zip(found, truth, most, strict=True):
        assert (one.double() - other).norm() <= share * roundoff * other.norm()


def test_a_call_draws_its_seed_from_torch_s_generator(causal: ModuleType) -> None:
    q, k, v = qkv()
    torch.manual_seed(7)
    kept = causal.dropout_mask(q, k)
    torch.manual_seed(7)
    out = causal.attention(q, k, v, **HOW)
    reference = causal.reference(q.double(), k.double(), v.double(), dropout_mask=kept)
    torch.testing.assert_close(out.double(), reference, rtol=1e-5, atol=1e-5)
    assert not torch.equal(causal.attention(q, k, v, **HOW), out)
    torch.manual_seed(7)
    assert torch.equal(causal.attention(q, k, v, **HOW), out)
    torch.manual_seed(7)
    again = causal.reference(q.double(), k.double(), v.double())
    assert torch.equal(again, reference)


def test_without_dropout_nothing_is_drawn_and_kernels_are_those_without(
    causal: ModuleType, gallery_module: Any
) -> None:
    q, k, v = qkv()
    before = torch.get_rng_state()
    out = causal.attention(q, k, v, dropout_p=0, **HOW)
    assert torch.equal(torch.get_rng_state(), before)
    plain = gallery_module("causal").attention(q, k, v, **HOW)
    assert torch.equal(out, plain)
    d_out = torch.randn_like(out)
    for one, other in zip(*(torch.autograd.grad(each, (q, k, v), d_out) for each in (out, plain)), strict=True):
        assert torch.equal(one, other)
    assert causal.dropout_mask(q, k, dropout_p=0).all()


def test_lse_and_max_are_those_without_dropout(causal: ModuleType) -> None:
    q, k, v = qkv()
    _, *dropped = causal.attention(q, k, v, dropout_p=0.5, return_lse=True, return_max=True, **HOW)
    _, *whole = causal.attention(q, k, v, dropout_p=0, return_lse=True, return_max=True, **HOW)
    assert all(torch.equal(one, other) for one, other in zip(dropped, whole, strict=True))


def test_few_queries_over_many_keys_drop_too(causal: ModuleType) -> None:
    q, k, v = qkv(2, 600)
    seed = seed_of(9)
    out = causal.attention(q, k, v, dropout_p=0.5, dropout_seed=seed)
    reference = causal.reference(q.double(), k.double(), v.double(), dropout_p=0.5, dropout_seed=seed)
    torch.testing.assert_close(out.double(), reference, rtol=1e-5, atol=1e-5)


def test_packed_sequences_drop_by_their_own_places(causal: ModuleType) -> None:
    lengths, seed = (5, 0, 33, 20), seed_of(11)
    ends = torch.tensor([0, 5, 5, 38, 58], dtype=torch.int32, device=DEVICE)
    q = torch.randn(58, 4, 16, device=DEVICE)
    k, v = (torch.randn(58, 2, 16, device=DEVICE) for _ in range(2))
    out = causal.attention_varlen(q, k, v, ends, ends, 33, 33, dropout_p=0.4, dropout_seed=seed, config=CONFIG)
    kept = causal.dropout_mask(
        q, k, cu_seqlens_q=ends, max_seqlen_q=33, max_seqlen_k=33, dropout_p=0.4, dropout_seed=seed
    )
    assert kept.shape == (4, 4, 33, 33)
    for b, length in enumerate(lengths):
        start = int(ends[b])
        own = [x[start : start + length].transpose(0, 1)[None].double() for x in (q, k, v)]
        if length:
            mask = kept[b : b + 1, :, :length, :length]
            reference = causal.reference(*own, dropout_p=0.4, dropout_mask=mask)
            torch.testing.assert_close(
                out[start : start + length].transpose(0, 1)[None].double(), reference, rtol=1e-5, atol=1e-5
            )


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_draws_the_same_again(causal: ModuleType, reentrant: bool) -> None:
    q, k, v = qkv()

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return causal.attention(q, k, v, dropout_p=0.5, **HOW)

    torch.manual_seed(5)
    plain = torch.autograd.grad(attend(q, k, v).square().sum(), (q, k, v))
    torch.manual_seed(5)
    out = checkpoint(attend, q, k, v, use_reentrant=reentrant)
    out.square().sum().backward()
    for leaf, gradient in zip((q, k, v), plain, strict=True):
        torch.testing.assert_close(leaf.grad, gradient)


def test_torch_compile_traces_the_draw(causal: ModuleType) -> None:
    q, k, v = qkv()
    attend = torch.compile(
        lambda: causal.attention(q, k, v, dropout_p=0.5, config=CONFIG), fullgraph=True, backend="aot_eager"
    )
    torch.manual_seed(5)
    first = attend()
    assert not torch.equal(attend(), first)
    torch.manual_seed(5)
    assert torch.equal(attend(), first)


def test_vmap_asks_what_is_random(causal: ModuleType) -> None:
    q, k, v = (x.detach().expand(3, *x.shape) for x in qkv())

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return causal.attention(q, k, v, dropout_p=0.5, **HOW)

    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(attend)(q, k, v)
    different = torch.func.vmap(attend, randomness="different")(q, k, v)
    assert not torch.equal(different[0], different[1])
    same = torch.func.vmap(attend, randomness="same")(q, k, v)
    assert torch.equal(same[0], same[1])


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"dropout_p": 1.0}, ValueError, r"dropout_p is 1\.0; expected a number from 0 to 1, 1 excluded"),
        ({"dropout_p": -0.1}, ValueError, r"dropout_p is -0\.1; expected a number from 0 to 1, 1 excluded"),
        ({"dropout_p": float("nan")}, ValueError, "dropout_p is nan; expected"),
        ({"dropout_p": True}, TypeError, "dropout_p is True; expected a float"),
        ({"dropout_p": "0.1"}, TypeError, "dropout_p is str; expected a float"),
        ({"dropout_seed": 3}, TypeError, "dropout_seed is int; expected a torch.Tensor"),
        ({"dropout_seed": torch.zeros((), device=DEVICE)}, TypeError, "dropout_seed is torch.float32"),
        (
            {"dropout_seed": torch.zeros(2, dtype=torch.int64, device=DEVICE)},
            ValueError,
            r"dropout_seed has shape \(2,\); expected \(\), one number",
        ),
    ],
)
def test_what_does_not_fit_is_named(causal: ModuleType, how: dict[str, Any], error: type, message: str) -> None:
    q, k, v = qkv()
    with pytest.raises(error, match=message):
        causal.attention(q, k, v, **how)
    with pytest.raises(error, match=message):
        causal.dropout_mask(q, k, **how)


Q, K, ENDS = torch.zeros(2, 2, 20, 16), torch.zeros(2, 2, 24, 16), torch.tensor([0, 4, 20])


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((Q[0], K), {}, r"q has shape \(2, 20, 16\); expected 4 dimensions, \[batch, heads, length, head_dim\]"),
        ((Q, K[0]), {}, r"k has shape \(2, 24, 16\); expected 4 dimensions"),
        ((Q, 3), {}, "k is int; expected a torch.Tensor"),
        ((Q, K), {"max_seqlen_q": 16}, "given without cu_seqlens_q; expected all three or none"),
        ((Q, K), {"cu_seqlens_q": ENDS}, r"q has shape .*; expected 3 dimensions, .* beside cu_seqlens_q"),
        ((Q[0], K[0]), {"cu_seqlens_q": ENDS}, "max_seqlen_q or max_seqlen_k is None"),
        ((Q[0], K[0]), {"cu_seqlens_q": [0, 20]}, "cu_seqlens_q is list; expected a torch.Tensor"),
        (
            (Q[0], K[0]),
            {"cu_seqlens_q": ENDS[None], "max_seqlen_q": 16, "max_seqlen_k": 16},
            r"cu_seqlens_q has shape \(1, 3\); expected \[batch \+ 1\]",
        ),
    ],
)
def test_a_mask_is_of_a_call_that_could_be(
    causal: ModuleType, arguments: tuple[Any, ...], keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        causal.dropout_mask(*arguments, **keywords)


def test_the_reference_takes_a_mask_of_its_scores(causal: ModuleType) -> None:
    q, k, v = qkv()
    mask = causal.dropout_mask(q, k)
    for wrong in (3, mask.float(), mask[..., :-1]):
        with pytest.raises((TypeError, ValueError), match=r"dropout_mask is .*; expected (a )?torch\."):
            causal.reference(q, k, v, dropout_mask=wrong)


def test_torch_compile_needs_not_know_the_probability(causal: ModuleType) -> None:
    q, k, _ = qkv()
    seed = torch.tensor(3, device=DEVICE)

    def mask(q: torch.Tensor, p: float) -> Any:
        return causal.dropout_mask(q, k, dropout_seed=seed, dropout_p=p)

    compiled = torch.compile(mask, fullgraph=True, dynamic=True, backend="eager")
    for p in (1e-9, 0.1, 0.49999, 0.5, 0.50004, 0.9, 1 - 1e-12):
        assert torch.equal(compiled(q, p), mask(q, p))


def test_nearly_all_may_be_dropped(full: ModuleType) -> None:
    q, k, v = qkv()
    assert full.attention(q, k, v, dropout_p=1 - 1e-12, **HOW).isfinite().all()
    assert full.dropout_mask(q, k, dropout_p=1 - 1e-12).float().mean() < 0.01


def test_serving_drops_nothing(causal: ModuleType) -> None:
    with pytest.raises(TypeError, match="dropout_p"):
        causal.attention_paged(None, None, None, None, None, dropout_p=0.1)


def test_one_file_drops_the_same(causal: ModuleType, tmp_path: Path) -> None:
    alone = load_module(export_module(dropping("causal"), [], tmp_path / "alone.py").path)
    q, k, v = qkv()
    seed = seed_of(5)
    one, other = (m.attention(q, k, v, dropout_seed=seed, **HOW) for m in (causal, alone))
    assert torch.equal(one, other)
