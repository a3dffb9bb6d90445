"""What torch counts for calls of generated attention: as much as for its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from attending import DEVICE
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from flashgen.bench.unlaunched import unlaunched

Modules = Callable[[str], ModuleType]
# [batch, heads, length, dim] of q, k and v.
Q, K, V = (2, 4, 7, 16), (2, 2, 20, 16), (2, 2, 20, 24)


def counted(call: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as mode:
        call()
    return mode.get_total_flops()


def tensors(*shapes: tuple[int, ...], device: str = DEVICE) -> list[torch.Tensor]:
    return [torch.randn(shape, device=device, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("name", ["causal", "document", "relative_bias"])
def test_a_call_counts_as_torchs_own_attention(gallery_module: Modules, name: str) -> None:
    module = gallery_module(name)
    q, k, v = tensors(Q, K, V)
    inputs = {
        "document": {"doc": torch.zeros(2, 20, device=DEVICE, dtype=torch.int32)},
        "relative_bias": {"rel": torch.randn(4, 129, device=DEVICE, requires_grad=True)},
    }.get(name, {})
    forward = sdpa_flop_count(Q, K, V)
    assert counted(lambda: module.attention(q, k, v, **inputs)) == forward
    out = module.attention(q, k, v, **inputs)
    whole = counted(lambda: module.attention(q, k, v, **inputs).sum().backward())
    assert whole == forward + sdpa_backward_flop_count(out.shape, Q, K, V)


def test_gradients_that_nobody_asks_for_count_nothing(gallery_module: Modules) -> None:
    q, k, v = tensors(Q, K, V)
    out = gallery_module("causal").attention(q, k.detach(), v.detach())
    products = 4 * 2 * 7 * 20  # heads, batch, q_len and kv_len
    assert counted(out.sum().backward) == 2 * products * (16 + 24 + 16)  # the scores, d_out with v, dq


@pytest.mark.parametrize("known", [True, False], ids=["lengths", "fake"])
def test_packed_sequences_count_their_own_lengths(gallery_module: Modules, known: bool) -> None:
    module = gallery_module("causal")
    q_lens, kv_lens = (3, 0, 8), (5, 4, 9)

    def call() -> torch.Tensor:
        q, k = tensors((11, 4, 16), (18, 2, 16))
        ends = (torch.tensor([0, *each], device=DEVICE).cumsum(0, dtype=torch.int32) for each in (q_lens, kv_lens))
        out: torch.Tensor = module.attention_varlen(q, k, k, *ends, 8, 9)
        return out

    def step() -> None:
        call().sum().backward()

    if known:
        pairs = 3 * 5 + 8 * 9
        assert counted(call) == 2 * 4 * pairs * 32
        assert counted(step) == 2 * 4 * pairs * (32 + 5 * 16)
    else:
        with FakeTensorMode():
            assert counted(step) == 2 * 4 * 11 * 9 * (32 + 5 * 16)


@pytest.mark.parametrize("ends", [None, [0, 3, 4]], ids=["one query each", "several queries"])
def test_calls_over_a_paged_cache_count_their_own_lengths(gallery_module: Modules, ends: list[int] | None) -> None:
    module = gallery_module("causal")

    def call(device: str = DEVICE) -> None:
        starts = None if ends is None else torch.tensor(ends, device=device, dtype=torch.int32)
        q = torch.randn(2 if ends is None else 4, 4, 16, device=device)
        k_cache, v_cache = (torch.randn(4, 16, 2, dim, device=device) for dim in (16, 24))
        table = torch.arange(4, device=device, dtype=torch.int32).view(2, 2)
        seq_lens = torch.tensor([20, 9], device=device, dtype=torch.int32)
        module.attention_paged(q, k_cache, v_cache, table, seq_lens, cu_seqlens_q=starts, max_seqlen_q=3)

    assert counted(call) == 2 * 4 * (20 + 9 if ends is None else 3 * 20 + 9) * (16 + 24)
    assert counted(lambda: call("meta")) == 2 * 4 * (2 if ends is None else 4) * 32 * (16 + 24)


@pytest.mark.skipif(torch.cuda.is_available(), reason="tensors of the CPU stand for those of a GPU")
def test_pairs_that_32_bits_do_not_hold_are_counted(gallery_module: Modules) -> None:
    module, length = gallery_module("causal"), 2**17
    ends = torch.tensor([0, length], dtype=torch.int32)
    q = torch.zeros(length, 1, 16, dtype=torch.float16)
    table, lengths = torch.zeros(1, length // 16, dtype=torch.int32), torch.tensor([length], dtype=torch.int32)
    cache = torch.zeros(1, 16, 1, 16, dtype=torch.float16)
    with unlaunched():
        assert counted(lambda: module.attention_varlen(q, q, q, ends, ends, length, length)) == 2 * length**2 * 32
        paged = partial(module.attention_paged, q, cache, cache, table, lengths)
        assert counted(lambda: paged(cu_seqlens_q=ends, max_seqlen_q=length)) == 2 * length**2 * 32
