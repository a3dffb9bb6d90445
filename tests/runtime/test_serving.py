"""What serving needs beside attention: a cache written, partial results merged, a scheduler's numbers checked."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from handed import addresses_of

from flashgen.bench.unlaunched import is_repeated, unlaunched
from flashgen.runtime.serving import check, check_varlen, merge_states, store_kv

NUM_BLOCKS, BLOCK_SIZE, KV_HEADS, HEAD_DIM, V_HEAD_DIM = 4, 16, 3, 40, 24
SLOTS = torch.tensor([3, -1, 63, 17, 16, 64, 5])
MOST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0, torch.float16: 65504.0}
DTYPES = [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8]


def new_cache(dtype: torch.dtype, dim: int, by_head: bool = False) -> torch.Tensor:
    """An empty cache, laid out by tokens or by heads."""
    if by_head:
        return torch.zeros(NUM_BLOCKS, KV_HEADS, BLOCK_SIZE, dim, dtype=dtype).transpose(1, 2)
    return torch.zeros(NUM_BLOCKS, BLOCK_SIZE, KV_HEADS, dim, dtype=dtype)


def expected_values(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """One token's values as the cache is to hold them."""
    x = x / scale
    if dtype == torch.int8:
        return x.round().clamp(-128, 127).float()
    most = MOST.get(dtype, math.inf)
    return x.clamp(-most, most).to(dtype).float()


def scales_of_slot(scale: torch.Tensor, slot: int) -> torch.Tensor:
    """The scales of one slot, [kv_heads, 1]."""
    each = scale.reshape(-1, KV_HEADS)[slot] if scale.ndim == 3 else scale.expand(KV_HEADS)
    return each[:, None]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (KV_HEADS,), (NUM_BLOCKS, BLOCK_SIZE, KV_HEADS)], ids=["one", "head", "token"])
def test_stored_values_are_the_nearest_that_the_cache_holds(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    k, v = torch.randn(7, KV_HEADS, HEAD_DIM) * 200, torch.randn(7, KV_HEADS, V_HEAD_DIM) * 1e5
    k_cache, v_cache = new_cache(dtype, HEAD_DIM), new_cache(dtype, V_HEAD_DIM, by_head=True)
    k_scale, v_scale = torch.rand(shape) + 0.5, torch.rand(shape) + 0.5
    store_kv(k, v, k_cache, v_cache, SLOTS, k_scale, v_scale)
    for x, cache, scale in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        written = torch.zeros(NUM_BLOCKS * BLOCK_SIZE, dtype=torch.bool)
        for token, slot in enumerate(SLOTS.tolist()):
            if 0 <= slot < len(written):
                written[slot] = True
                wanted = expected_values(x[token], scales_of_slot(scale, slot), dtype)
                found = cache[slot // BLOCK_SIZE, slot % BLOCK_SIZE].float()
                assert torch.equal(found, wanted)
        left = cache.float()[~written.view(NUM_BLOCKS, BLOCK_SIZE)]
        assert torch.all(left == 0), "a slot that no token names was written"


def test_what_is_not_converted_is_copied() -> None:
    k = torch.tensor([math.inf, -math.inf, math.nan, 1.0]).to(torch.bfloat16).expand(1, KV_HEADS, 4)
    k_cache, v_cache = new_cache(torch.bfloat16, 4), new_cache(torch.bfloat16, 4)
    store_kv(k.contiguous(), k.contiguous(), k_cache, v_cache, torch.tensor([20], dtype=torch.int32))
    torch.testing.assert_close(k_cache[1, 4], k[0], equal_nan=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.zeros(7, KV_HEADS, 8)}, "k has shape"),
        ({"v": torch.zeros(7, KV_HEADS, V_HEAD_DIM, dtype=torch.int32)}, "v has dtype"),
        ({"slot_mapping": torch.zeros(6, dtype=torch.int64)}, "slot_mapping has shape"),
        ({"slot_mapping": torch.zeros(7)}, "slot_mapping has dtype"),
        ({"k_scale": torch.ones(2)}, "k_scale has shape"),
        ({"v_scale": torch.ones(3, dtype=torch.float64)}, "v_scale is"),
        ({"k_cache": torch.zeros(4, 15, KV_HEADS, HEAD_DIM)}, "k_cache has shape"),
        ({"k_cache": torch.zeros(4, 16, KV_HEADS, HEAD_DIM, dtype=torch.int32)}, "k_cache has dtype"),
        ({"k": [1.0]}, "k is list; expected a torch.Tensor"),
        ({"v_cache": None}, "v_cache is NoneType; expected a torch.Tensor"),
        ({"v_scale": 0.5}, "v_scale is float; expected a torch.Tensor"),
        ({"slot_mapping": SLOTS.to_sparse()}, "slot_mapping is a sparse_coo tensor"),
        ({"v_cache": torch.zeros(4, 16, KV_HEADS, V_HEAD_DIM, dtype=torch.int8, device="meta")}, "v_cache is on meta"),
        ({"v_cache": torch.zeros(16, KV_HEADS, V_HEAD_DIM).expand(4, -1, -1, -1)}, r"v_cache has strides \(0, "),
        ({"v_cache": torch.zeros(5, 16, KV_HEADS, V_HEAD_DIM)}, "v_cache has shape .*; expected k_cache's num_blocks"),
        ({"v_cache": torch.zeros(2, 32, KV_HEADS, V_HEAD_DIM)}, "v_cache has shape .*; expected k_cache's num_blocks"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_nothing_is_written(change: dict[str, Any], message: str) -> None:
    arguments = {
        "k": torch.ones(7, KV_HEADS, HEAD_DIM), "v": torch.ones(7, KV_HEADS, V_HEAD_DIM),
        "k_cache": new_cache(torch.int8, HEAD_DIM), "v_cache": new_cache(torch.int8, V_HEAD_DIM),
        "slot_mapping": SLOTS,
    }  # fmt: skip
    with pytest.raises((TypeError, ValueError), match=message):
        store_kv(**{**arguments, **change})
    assert not arguments["k_cache"].any() and not arguments["v_cache"].any()


def test_a_compiler_has_it_in_its_graph() -> None:
    """Also where both caches lie in one tensor, and with any number of tokens."""

    def step(k: torch.Tensor, v: torch.Tensor, caches: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        store_kv(k, v, caches[:, 0], caches[:, 1], slots)
        return caches.sum()

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for tokens in (3, 4, 7):
        k, v = torch.randn(2, tokens, KV_HEADS, HEAD_DIM)
        found, wanted = torch.zeros(2, NUM_BLOCKS, 2, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
        torch.testing.assert_close(compiled(k, v, found, SLOTS[:tokens]), step(k, v, wanted, SLOTS[:tokens]))
        assert torch.equal(found, wanted) and found.any()


def test_tensors_without_memory_are_checked_alone() -> None:
    k, v, k_cache, v_cache, slots = (
        each.to("meta")
        for each in (torch.ones(7, 1, 4), torch.ones(7, 1, 4), *torch.ones(2, 3, 16, 1, 4), torch.zeros(7).long())
    )
    store_kv(k, v, k_cache, v_cache, slots)
    with pytest.raises(ValueError, match="v has shape"):
        store_kv(k, v[..., :2], k_cache, v_cache, slots)


@pytest.mark.skipif(torch.cuda.is_available(), reason="tensors of the CPU stand for those of a GPU")
@pytest.mark.parametrize("shared", [False, True], ids=["two sources", "one source"])
def test_a_call_that_is_repeated_stores_its_own_tokens(shared: bool) -> None:
    """Whichever tensors were given to the calls before, one for two of them too."""
    handed: list[list[int]] = []
    with unlaunched(lambda *launched: handed.append(addresses_of(launched)[:3])):
        for call in range(6):
            k, v = torch.randn(2, 7, KV_HEADS, HEAD_DIM)
            k_cache, v_cache = new_cache(torch.int8, HEAD_DIM), new_cache(torch.int8, HEAD_DIM)
            v = k if shared and call < 3 else v
            handed.clear()
            store_kv(k, v, k_cache, v_cache, SLOTS)
            wanted = [[each.data_ptr() for each in given] for given in ((k, k_cache, SLOTS), (v, v_cache, SLOTS))]
            assert handed == wanted
        assert is_repeated(lambda: store_kv(k, v, k_cache, v_cache, SLOTS))


def attention_over(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores = q @ k.transpose(-1, -2)
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def test_parts_merge_into_the_whole_with_its_gradients() -> None:
    torch.manual_seed(0)
    shapes = [(2, 3, 5, 8), (2, 3, 20, 8), (2, 3, 20, 4)]
    q, k, v = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    whole = attention_over(q, k, v)
    parts = [attention_over(q, k[:, :, part], v[:, :, part]) for part in (slice(0, 3), slice(3, 11), slice(11, 20))]
    merged = merge_states([out for out, _ in parts], [lse for _, lse in parts])
    weights = [torch.randn_like(each) for each in whole]
    found, wanted = (
        torch.autograd.grad(
            sum((w * x).sum() for w, x in zip(weights, each, strict=True)), (q, k, v), retain_graph=True
        )
        for each in (merged, whole)
    )
    for one, other in zip((*merged, *found), (*whole, *wanted), strict=True):
        torch.testing.assert_close(one, other)


def test_packed_parts_merge_by_their_own_layout() -> None:
    torch.manual_seed(0)
    outs, lses = torch.randn(2, 1, 3, 5, 4), torch.randn(2, 1, 3, 5)
    out, lse = merge_states(outs, lses)
    packed = merge_states([each[0].transpose(0, 1) for each in outs], [each[0] for each in lses])
    torch.testing.assert_close(packed[0].transpose(0, 1)[None], out)
    torch.testing.assert_close(packed[1][None], lse)


def test_rows_that_saw_nothing_change_nothing() -> None:
    outs = torch.randn(2, 1, 1, 3, 4)
    lses = torch.tensor([[0.5, -math.inf, -math.inf], [-math.inf, 2.0, -math.inf]])[:, None, None]
    outs.requires_grad_(), lses.requires_grad_()
    out, lse = merge_states(outs, lses)
    torch.testing.assert_close(out[0, 0], torch.stack([outs[0, 0, 0, 0], outs[1, 0, 0, 1], torch.zeros(4)]))
    torch.testing.assert_close(lse[0, 0], torch.tensor([0.5, 2.0, -math.inf]))
    (out.sum() + lse[0, 0, :2].sum()).backward()
    assert torch.isfinite(outs.grad).all()
    assert torch.isfinite(lses.grad).all()


@pytest.mark.parametrize("unwritten", [math.nan, math.inf])
def test_nor_does_what_stands_where_they_saw_nothing(unwritten: float) -> None:
    outs = torch.randn(2, 1, 1, 3, 4)
    lses = torch.tensor([[0.5, -math.inf, -math.inf], [-math.inf, 2.0, -math.inf]])[:, None, None]
    spoilt = torch.where(lses[..., None] == -math.inf, unwritten, outs).requires_grad_()
    lses.requires_grad_()
    out, lse = merge_states(spoilt, lses)
    torch.testing.assert_close((out, lse), merge_states(outs, lses))
    packed, _ = merge_states([each[0].transpose(0, 1) for each in spoilt], [each[0] for each in lses])
    torch.testing.assert_close(packed.transpose(0, 1)[None], out)
    (out.sum() + lse[0, 0, :2].sum()).backward()
    assert torch.isfinite(spoilt.grad).all()
    assert torch.isfinite(lses.grad).all()


def test_states_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"outs\[1\] has shape"):
        merge_states([torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 5)], [torch.zeros(1, 2, 3)] * 2)
    with pytest.raises(ValueError, match="1 outs and 2 lses"):
        merge_states([torch.zeros(1, 2, 3, 4)], [torch.zeros(1, 2, 3)] * 2)
    with pytest.raises(TypeError, match=r"lses is NoneType; expected a tensor, or a sequence of them"):
        merge_states([torch.zeros(1, 2, 3, 4)], None)
    with pytest.raises(ValueError, match=r"lses has shape \(\); expected a first dimension, of the parts"):
        merge_states([torch.zeros(1, 2, 3, 4)], torch.zeros(()))
    with pytest.raises(TypeError, match=r"outs\[0\] is float; expected a torch\.Tensor"):
        merge_states([1.0], [torch.zeros(1, 2, 3)])
    with pytest.raises(TypeError, match=r"outs\[0\] is torch\.int32 on cpu; expected floats on cpu"):
        merge_states([torch.zeros(1, 2, 3, 4).int()], [torch.zeros(1, 2, 3)])
    with pytest.raises(TypeError, match=r"lses\[0\] is torch\.float32 on meta; expected floats on cpu"):
        merge_states([torch.zeros(1, 2, 3, 4)], [torch.zeros(1, 2, 3, device="meta")])
    with pytest.raises(TypeError, match=r"outs\[0\] is a sparse_coo tensor; expected a strided"):
        merge_states([torch.zeros(1, 2, 3, 4).to_sparse()], [torch.zeros(1, 2, 3)])


def test_check_says_all_that_is_wrong() -> None:
    q, k_cache = torch.zeros(5, 4, 16), torch.zeros(8, 16, 2, 16)
    table = torch.tensor([[0, 1], [7, 99]], dtype=torch.int32)
    lengths = torch.tensor([32, 16], dtype=torch.int32)
    starts = torch.tensor([0, 2, 5], dtype=torch.int32)
    check(q, k_cache, table, lengths, cu_seqlens_q=starts, max_seqlen_q=3)
    with pytest.raises(ValueError, match=r"block_table\[1, 1\] is 99; expected 0 to 7"):
        check(q, k_cache, table, torch.tensor([32, 17]), cu_seqlens_q=starts, max_seqlen_q=3)
    with pytest.raises(ValueError, match=r"seq_lens\[0\] is 33; expected 0 to 32; .* sequence 0 has -1 queries"):
        check(q, k_cache, table, torch.tensor([33, 0]), cu_seqlens_q=torch.tensor([1, 0, 4]), max_seqlen_q=4)


def test_check_says_what_has_not_a_number_for_each_sequence() -> None:
    q, k_cache, table = torch.zeros(5, 4, 16), torch.zeros(8, 16, 2, 16), torch.zeros(2, 2, dtype=torch.int32)
    lengths = torch.tensor([3, 4], dtype=torch.int32)
    with pytest.raises(ValueError, match="q has 5 queries and block_table 2 sequences; expected as many"):
        check(q, k_cache, table, lengths)
    with pytest.raises(
        ValueError, match=r"seq_lens has shape \(3,\); expected \[2\], as block_table is of 2 sequences"
    ):
        check(q, k_cache, table, torch.tensor([3, 4, 5]), cu_seqlens_q=torch.tensor([0, 2, 5]), max_seqlen_q=3)
    with pytest.raises(ValueError, match=r"cu_seqlens_q has shape \(2,\); expected \[3\]"):
        check(q, k_cache, table, lengths, cu_seqlens_q=torch.tensor([0, 5]), max_seqlen_q=5)
    with pytest.raises(ValueError, match=r"block_table has shape \(2,\); expected \[batch, max_blocks\]"):
        check(q, k_cache, table[0], lengths)
    with pytest.raises(ValueError, match=r"cu_seqlens_k has shape \(2,\); expected \[3\], as cu_seqlens_q is of 2"):
        check_varlen(q, q, torch.tensor([0, 2, 5]), torch.tensor([0, 5]), 5, 5)
    with pytest.raises(ValueError, match=r"cu_seqlens_q has shape \(0,\); expected \[1\]"):
        check_varlen(q, q, torch.zeros(0), torch.zeros(0), 5, 5)


NUMBERS = torch.tensor([0, 2], dtype=torch.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": None}, "q is NoneType; expected a torch.Tensor"),
        ({"q": torch.zeros(())}, r"q has shape \(\); expected \[total_q, \.\.\.\]"),
        ({"k_cache": torch.zeros(16)}, r"k_cache has shape \(16,\); expected \[num_blocks, block_size, kv_heads"),
        ({"block_table": [[0], [1]]}, "block_table is list; expected a torch.Tensor"),
        ({"block_table": torch.zeros(2, 1)}, "block_table is torch.float32; expected int32"),
        ({"seq_lens": (3, 4)}, "seq_lens is tuple; expected a torch.Tensor"),
        ({"seq_lens": torch.tensor([3.0, math.nan])}, "seq_lens is torch.float32; expected int32"),
        ({"cu_seqlens_q": [0, 1, 2]}, "cu_seqlens_q is list; expected a torch.Tensor"),
        ({"max_seqlen_q": "3"}, "max_seqlen_q is str; expected an int"),
        ({"max_seqlen_k": torch.tensor(3)}, "max_seqlen_k is Tensor; expected an int"),
        ({"max_seqlen_q": 0}, "^max_seqlen_q is 0; expected 1 to 16777215$"),
        ({"max_seqlen_k": -5}, "^max_seqlen_k is -5; expected 1 to 16777215$"),
        ({"max_seqlen_k": 2**24}, "^max_seqlen_k is 16777216; expected 1 to 16777215$"),
        (
            {"block_table": torch.zeros(2, 0).int()},
            r"block_table has shape \(2, 0\); expected .* max_blocks at least 1",
        ),
        (
            {"k_cache": torch.zeros(8, 0, 2, 16)},
            r"k_cache has shape \(8, 0, 2, 16\); expected \[num_blocks, block_size",
        ),
        (
            {"block_table": torch.zeros(2, 1).int().to_sparse()},
            "block_table is a sparse_coo tensor; expected a strided",
        ),
        ({"seq_lens": NUMBERS.to("meta")}, "seq_lens is on meta; expected a tensor that has its numbers"),
    ],
)
def test_check_says_what_is_no_number_by_name(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {
        "q": torch.zeros(2, 4, 16), "k_cache": torch.zeros(8, 16, 2, 16),
        "block_table": torch.zeros(2, 1, dtype=torch.int32), "seq_lens": NUMBERS,
    }  # fmt: skip
    check(**given)
    with pytest.raises((TypeError, ValueError), match=message):
        check(**{**given, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 3}, "k is int; expected a torch.Tensor"),
        ({"q": torch.zeros(())}, r"q has shape \(\); expected \[total_q, \.\.\.\]"),
        ({"cu_seqlens_q": None}, "cu_seqlens_q is NoneType; expected a torch.Tensor"),
        ({"cu_seqlens_k": [0, 2]}, "cu_seqlens_k is list; expected a torch.Tensor"),
        ({"cu_seqlens_k": torch.tensor([0.0, 2.0])}, "cu_seqlens_k is torch.float32; expected int32"),
        ({"max_seqlen_k": None}, "max_seqlen_k is NoneType; expected an int"),
        ({"max_seqlen_q": 0}, "^max_seqlen_q is 0; expected 1 to 16777215$"),
        ({"max_seqlen_k": 2**24}, "^max_seqlen_k is 16777216; expected 1 to 16777215$"),
        ({"cu_seqlens_k": NUMBERS.to("meta")}, "cu_seqlens_k is on meta; expected a tensor that has its numbers"),
    ],
)
def test_check_varlen_says_what_is_no_number_by_name(change: dict[str, Any], message: str) -> None:
    tokens, longest = torch.zeros(2, 4, 16), {"max_seqlen_q": 2, "max_seqlen_k": 2}
    given = {"q": tokens, "k": tokens, "cu_seqlens_q": NUMBERS, "cu_seqlens_k": NUMBERS, **longest}
    check_varlen(**given)
    with pytest.raises((TypeError, ValueError), match=message):
        check_varlen(**{**given, **change})
