"""Attention over a paged cache, in the interpreter: each sequence as its reference has it, whatever lies around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gallery import NAMES, VARIANTS
from paged_attending import RAGGED, SEVERAL, Gallery, attend

from flashgen.codegen import generate, load_module
from flashgen.problems.paged import SCALES, make_batch
from flashgen.runtime.cache_dtypes import QUANTISED
from flashgen.spec import load


@pytest.mark.parametrize("q_lens", [None, SEVERAL], ids=["one query", "several"])
@pytest.mark.parametrize("name", NAMES)
def test_every_variant_serves_ragged_sequences(gallery_module: Gallery, name: str, q_lens: tuple[int, ...]) -> None:
    variant = VARIANTS[name]
    attend(gallery_module(name), variant, make_batch(RAGGED, q_lens))


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("cache", QUANTISED, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_caches_of_eight_bits(gallery_module: Gallery, dtype: torch.dtype, cache: torch.dtype, scales: str) -> None:
    variant = VARIANTS["alibi"]
    attend(gallery_module("alibi"), variant, make_batch((20, 70), dtype=dtype, cache=cache, scales=scales))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("by_head", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (8, 2), (16, 2), (20, 1)])
def test_layouts_and_groups(
    gallery_module: Gallery, heads: int, kv_heads: int, by_head: bool, dtype: torch.dtype
) -> None:
    """Groups that fill a tile and groups that need several; head dimensions that are no powers of two."""
    batch = make_batch(
        (40, 5), (2, 1), heads=heads, kv_heads=kv_heads, head_dim=20, v_head_dim=24, block_size=48, by_head=by_head,
        dtype=dtype,
    )  # fmt: skip
    attend(gallery_module("sink"), VARIANTS["sink"], batch)


@pytest.mark.parametrize("scale", [0.3, -0.3])
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (0, 2, 1)], ids=["tokens", "heads", "dims"])
def test_queries_in_any_strides(gallery_module: Gallery, order: tuple[int, int, int], scale: float) -> None:
    """Whatever lies next to what, also where q is negated for a scale below zero."""
    module, batch = gallery_module("causal"), make_batch((20, 40), (3, 2))
    moved = batch.q.permute(order).contiguous().permute(order)
    wanted = module.attention_paged(batch.q * scale, *batch.arguments[1:], **batch.queries, scale=1.0)
    found = module.attention_paged(moved, *batch.arguments[1:], **batch.queries, scale=scale)
    torch.testing.assert_close(found, wanted)


def test_many_new_queries(gallery_module: Gallery) -> None:
    """Prompts of several tiles beside decoding sequences."""
    attend(gallery_module("causal"), VARIANTS["causal"], make_batch((200, 7, 90), (150, 1, 70)))


def test_the_last_rows_of_a_tile_are_merged_too(gallery_module: Gallery) -> None:
    """Of 72 rows, of which each program of the merge has 16."""
    batch = make_batch((300, 40), (9, 1), heads=8, kv_heads=1)
    attend(gallery_module("causal"), VARIANTS["causal"], batch, config="BM=128 BN=16 num_warps=4 num_stages=1")


def test_sequences_may_share_pages(gallery_module: Gallery) -> None:
    batch = make_batch((64, 64))
    batch.block_table[1, :2] = batch.block_table[0, :2]
    attend(gallery_module("causal"), VARIANTS["causal"], batch)


@pytest.mark.parametrize("cache", [torch.bfloat16, torch.int8], ids=str)
def test_autocast_casts_queries_as_that_of_attention_does(gallery_module: Gallery, cache: torch.dtype) -> None:
    module = gallery_module("causal")
    batch = make_batch((20, 40), dtype=torch.bfloat16, cache=cache)
    q, (low, *rest) = batch.q.float(), batch.arguments
    wanted = module.attention_paged(low, *rest, **batch.options, return_lse=True)
    with torch.autocast("cpu", torch.bfloat16):
        plan = module.plan_paged(q, batch.k_cache, batch.block_table, batch.seq_lens)
        found = module.attention_paged(q, *rest, **batch.options, return_lse=True, plan=plan)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other) and one.dtype == other.dtype


def test_autocast_leaves_queries_beside_a_cache_of_another_dtype(gallery_module: Gallery) -> None:
    module, batch = gallery_module("causal"), make_batch((20, 40))
    with torch.autocast("cpu", torch.bfloat16):
        assert module.attention_paged(*batch.arguments).dtype == batch.q.dtype == torch.float32
        with pytest.raises(TypeError, match=r"k_cache has dtype torch\.float32; expected q's, torch\.bfloat16"):
            module.attention_paged(batch.q.bfloat16(), *batch.arguments[1:])


def test_a_sequence_has_the_same_bits_in_every_batch(gallery_module: Gallery) -> None:
    module = gallery_module("alibi")
    batch = make_batch((5000, 100, 2048, 2049, 31, 1), (2, 1, 1, 1, 3, 1), block_size=64)
    out, lse = module.attention_paged(*batch.arguments, **batch.options, return_lse=True, batch_invariant=True)
    ends = [0, *torch.tensor(batch.q_lens).cumsum(0).tolist()]
    for order in ((0,), (3,), (4,), (5, 4, 3, 2, 1, 0)):
        rows = torch.cat([torch.arange(ends[b], ends[b + 1]) for b in order])
        few = make_batch((1,) * len(order), [batch.q_lens[b] for b in order])
        found = module.attention_paged(
            batch.q[rows], batch.k_cache, batch.v_cache, batch.block_table[list(order)], batch.seq_lens[list(order)],
            cu_seqlens_q=few.cu_seqlens_q, max_seqlen_q=max(few.q_lens), return_lse=True, batch_invariant=True,
        )  # fmt: skip
        assert torch.equal(found[0], out[rows])
        assert torch.equal(found[1], lse[:, rows])


def test_nor_do_its_tiles_depend_on_how_many_queries_another_has(gallery_module: Gallery) -> None:
    """Products of other shapes may add up in another order, and a tile's keys begin with its first row's."""
    module = gallery_module("sliding_window")
    batch = make_batch((1500, 1500), (2, 20), heads=16, block_size=64, dtype=torch.float16)
    of_two = {"cu_seqlens_q": torch.tensor([0, 2], dtype=torch.int32), "max_seqlen_q": 2, "batch_invariant": True}
    beside = {**batch.queries, "batch_invariant": True}
    q, table, lengths = batch.q[:2], batch.block_table[:1], batch.seq_lens[:1]
    found = module.attention_paged(q, batch.k_cache, batch.v_cache, table, lengths, **of_two)
    assert torch.equal(found, module.attention_paged(*batch.arguments, **beside)[:2])
    plans = (
        module.plan_paged(q, batch.k_cache, table, lengths, **of_two),
        module.plan_paged(*batch.planning[0], **beside),
    )
    assert plans[0].sizes[-1] == plans[1].sizes[-1] == 16  # rows of a tile


def test_wrong_numbers_do_no_harm_to_other_sequences(gallery_module: Gallery) -> None:
    """Lengths beyond the table and below 0, pages that do not exist, queries that end before they begin."""
    module = gallery_module("causal")
    batch = make_batch((40, 30, 20), (2, 3, 1))
    # Then how the keys of the others are split depends on nothing that is wrong.
    options = {**batch.options, "batch_invariant": True}
    wanted = module.attention_paged(*batch.arguments, **options)
    table, lengths = batch.block_table.clone(), batch.seq_lens
    table[1], lengths[1] = 10**9, 10**9
    arguments = (batch.q, batch.k_cache, batch.v_cache, table, lengths)
    found = module.attention_paged(*arguments, **options)
    assert torch.equal(found[[0, 1, 5]], wanted[[0, 1, 5]])
    lengths[1] = -(10**9)
    found = module.attention_paged(*arguments, **options)
    assert torch.equal(found[[0, 1, 5]], wanted[[0, 1, 5]])
    starts = torch.tensor([0, 2, 10**6, -7], dtype=torch.int32)
    found = module.attention_paged(*arguments, cu_seqlens_q=starts, max_seqlen_q=3, batch_invariant=True)
    assert torch.equal(found[:2], wanted[:2])


NESTED = torch.nested.nested_tensor([torch.zeros(3, 4, 16), torch.zeros(5, 4, 16)], layout=torch.jagged)


# The number of a query among those of its sequence, in a spec.
OWN = "q - (kv_len - q_len)"


def test_inputs_along_queries_are_packed_as_queries_are(tmp_path: Path) -> None:
    """[batch, q_len] in the spec is [total_q] in the call."""
    spec = {
        "name": "packed",
        "score": f"score + bias[b, {OWN}]",
        "mask": f"(k <= q) | (on[b, {OWN}] > 0)",
        "inputs": {
            "bias": {"shape": ["batch", "q_len"], "dtype": "float32"},
            "on": {"shape": ["batch", "q_len"], "dtype": "int32"},
        },
    }
    variant = load(spec)
    module = load_module(generate(variant, tmp_path))
    batch = make_batch((30, 9, 40), (3, 1, 5))
    attend(module, variant, batch)


def test_new_queries_may_be_a_tree(tmp_path: Path) -> None:
    """Speculative tokens: each sees what was there before all of them, its ancestors and itself."""
    spec = {
        "name": "tree",
        "mask": f"(k < kv_len - q_len) | tree[b, {OWN}, max(k - (kv_len - q_len), 0)]",
        "inputs": {"tree": {"shape": ["batch", "nodes", "nodes"], "dtype": "bool"}},
    }
    variant = load(spec)
    attend(load_module(generate(variant, tmp_path)), variant, make_batch((30, 9, 40), (3, 1, 5)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(2, 4, 8)}, "k_cache has head_dim 16; expected q's, 8"),
        ({"q": torch.zeros(3, 4, 16)}, "q has 3 queries and block_table 2 sequences"),
        ({"q": torch.zeros(2, 3, 16)}, "q has 3 heads and k_cache 2"),
        ({"v_cache": torch.zeros(9, 16, 2, 16, dtype=torch.int8)}, "v_cache has dtype"),
        ({"v_cache": torch.zeros(9, 16, 2, 16)}, "v_cache has shape"),
        ({"block_table": torch.zeros(2, 3)}, "block_table is torch.float32"),
        ({"seq_lens": torch.zeros(3, dtype=torch.int32)}, "seq_lens has shape"),
        ({"cu_seqlens_q": torch.zeros(2, dtype=torch.int32)}, "cu_seqlens_q has shape"),
        ({"max_seqlen_q": 0}, "max_seqlen_q is 0"),
        ({"k_scale": torch.ones(())}, "k_scale is given for caches of torch.float32"),
        ({"out": torch.zeros(2, 4, 8)}, "out has shape"),
        ({"plan": 3}, "plan is int"),
        ({"q": [1.0]}, "q is list; expected a torch.Tensor"),
        ({"v_cache": None}, "v_cache is NoneType; expected a torch.Tensor"),
        ({"seq_lens": [20, 30]}, "seq_lens is list; expected a torch.Tensor"),
        ({"cu_seqlens_q": [0, 1, 2]}, "cu_seqlens_q is list; expected a torch.Tensor"),
        ({"v_scale": 0.5}, "v_scale is float; expected a torch.Tensor"),
        ({"out": 1}, "out is int; expected a torch.Tensor"),
        ({"q": torch.zeros(2, 4, 16).to_sparse()}, "q is a sparse_coo tensor; expected a strided one"),
        ({"q": NESTED}, "q is a nested tensor; expected a strided one"),
        ({"seq_lens": torch.zeros(4, dtype=torch.int32)[::2]}, r"seq_lens has shape \(2,\) and strides \(2,\)"),
        ({"out": torch.zeros(16).expand(2, 4, 16)}, r"out has strides \(0, 0, 1\); .* a place for each element"),
        ({"max_seqlen_q": 2.5}, "max_seqlen_q is 2.5; expected an int"),
        ({"max_seqlen_k": True}, "max_seqlen_k is True; expected an int"),
        ({"scale": "half"}, "scale is str; expected a float"),
        ({"batch_invariant": None}, "batch_invariant is NoneType; expected a bool"),
        ({"k_cache": torch.zeros(9, 16, 2, 16, device="meta")}, "k_cache is on meta; expected cpu"),
        ({"seq_lens": torch.zeros(2, dtype=torch.int32, device="meta")}, "seq_lens is torch.int32 on meta"),
        (
            {
                "q": torch.zeros(2, 4, 16),
                "block_table": torch.zeros(0, 3, dtype=torch.int32),
                "seq_lens": torch.zeros(0, dtype=torch.int32),
                "cu_seqlens_q": torch.zeros(1, dtype=torch.int32),
            },
            "q has 2 queries and block_table 0 sequences; expected none",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(gallery_module: Gallery, change: dict[str, Any], message: str) -> None:
    batch = make_batch((20, 30))
    names = ("q", "k_cache", "v_cache", "block_table", "seq_lens")
    arguments = {**dict(zip(names, batch.arguments, strict=True)), **change}
    with pytest.raises((TypeError, ValueError), match=message):
        gallery_module("causal").attention_paged(**arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": None}, "q is NoneType; expected a torch.Tensor"),
        ({"block_table": [[0]]}, "block_table is list; expected a torch.Tensor"),
        ({"max_seqlen_q": "1"}, "max_seqlen_q is str; expected an int"),
        ({"v_head_dim": 16.0}, "v_head_dim is 16.0; expected an int"),
        ({"v_head_dim": -1}, "v_head_dim is -1; expected 1 to 512"),
        ({"batch_invariant": 1}, "batch_invariant is 1; expected a bool"),
    ],
)
def test_a_plan_refuses_by_name_too(gallery_module: Gallery, change: dict[str, Any], message: str) -> None:
    given, _ = make_batch((20, 30)).planning
    arguments = {**dict(zip(("q", "k_cache", "block_table", "seq_lens"), given, strict=True)), **change}
    with pytest.raises((TypeError, ValueError), match=message):
        gallery_module("causal").plan_paged(**arguments)


def test_one_element_has_no_gaps_whatever_its_stride(gallery_module: Gallery) -> None:
    """As a scheduler's numbers have it where sequences are rows of one table, and a batch is one of them."""
    module, batch = gallery_module("causal"), make_batch((13,))
    numbers = torch.tensor([[*batch.block_table[0, :1].tolist(), 13, 7]], dtype=torch.int32)
    found = module.attention_paged(*batch.arguments[:3], numbers[:, ::3], numbers[:, 1])
    assert torch.equal(found, module.attention_paged(*batch.arguments))
