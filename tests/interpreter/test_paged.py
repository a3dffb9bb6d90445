"""Attention over a paged cache, in the interpreter: each sequence as its reference has it, whatever lies around it."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from gallery import NAMES, VARIANTS

from flashgen.codegen import generate, load_module
from flashgen.problems.paged import QUANTISED, SCALES, Batch, dense_inputs, make_batch, packed_keywords
from flashgen.runtime.device.plan import plan_splits
from flashgen.spec import load
from flashgen.spec.variant import Variant
from flashgen.verify.paged import judge_sequences

RAGGED = (0, 1, 15, 16, 17, 100)
SEVERAL = (1, 1, 3, 0, 2, 5)

Gallery = Callable[[str], ModuleType]


def attend(module: ModuleType, variant: Variant, batch: Batch, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse, each sequence proven."""
    own = dense_inputs(variant, batch)
    keywords = packed_keywords(variant, batch, own)
    out, lse = module.attention_paged(*batch.arguments, **batch.options, **keywords, return_lse=True, **options)
    for verdict in judge_sequences(module, variant, batch, own, out, lse):
        assert verdict.ok, verdict
    return out, lse


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


def test_sequences_may_share_pages(gallery_module: Gallery) -> None:
    batch = make_batch((64, 64))
    batch.block_table[1, :2] = batch.block_table[0, :2]
    attend(gallery_module("causal"), VARIANTS["causal"], batch)


def test_a_plan_serves_many_calls(gallery_module: Gallery) -> None:
    module, variant = gallery_module("causal"), VARIANTS["causal"]
    batch = make_batch(RAGGED, SEVERAL)
    options = {name: value for name, value in batch.options.items() if not name.endswith("scale")}
    plan = module.plan_paged(batch.q, batch.k_cache, batch.block_table, batch.seq_lens, **options)
    planned = attend(module, variant, batch, plan=plan)
    for one, other in zip(planned, attend(module, variant, batch), strict=True):
        assert torch.equal(one, other)
    out = torch.empty(batch.q.shape[1], batch.q.shape[0], 16).transpose(0, 1)
    assert module.attention_paged(*batch.arguments, **batch.options, plan=plan, out=out) is out
    assert torch.equal(out, planned[0])


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


# Batches whose plans have room for as many items: keys, queries and heads over 2 KV heads.
ALIKE = [
    ((40, 50), (8, 8), 16), ((40, 50, 60, 10), (2, 1, 1, 1), 16), ((40, 50, 60, 10), None, 16), ((40,), (16,), 16),
    ((40, 50), (16, 8), 8),
]  # fmt: skip


@pytest.mark.parametrize(("kv_lens", "q_lens", "heads"), ALIKE, ids=str)
def test_a_plan_of_another_batch_is_refused_where_it_has_the_same_room(
    gallery_module: Gallery, kv_lens: tuple[int, ...], q_lens: tuple[int, ...] | None, heads: int
) -> None:
    module = gallery_module("causal")
    batch = make_batch(kv_lens, q_lens, heads=heads)
    given, told = batch.planning
    own = module.plan_paged(*given, **told)
    module.attention_paged(*batch.arguments, **batch.options, plan=own)
    for other in ALIKE:
        if other != (kv_lens, q_lens, heads):
            given, told = make_batch(*other[:2], heads=other[2]).planning
            plan = module.plan_paged(*given, **told)
            assert plan.items.shape == own.items.shape
            with pytest.raises(ValueError, match=r"plan is for batch \d+, max_seqlen_q .*; expected one for batch "):
                module.attention_paged(*batch.arguments, **batch.options, plan=plan)


def test_a_plan_for_tiles_of_other_rows_is_refused_where_it_has_the_same_room(tmp_path: Path) -> None:
    """The window and one tile of 64 rows are two splits, two tiles of 32 rows see one each."""
    module = load_module(generate(load({"name": "recent", "window": {"left": 1990, "right": 0}}), tmp_path))
    sizes = {"heads": 64, "kv_heads": 1, "dtype": torch.float16}
    narrow, wide = (make_batch((2100,), head_dim=dim, v_head_dim=dim, **sizes) for dim in (64, 256))
    plans = [module.plan_paged(*batch.planning[0], batch_invariant=True) for batch in (narrow, wide)]
    assert plans[0].items.shape == plans[1].items.shape
    module.attention_paged(*wide.arguments, plan=plans[1])
    with pytest.raises(ValueError, match=r"plan is for .* rows of a tile 64; expected one for .* rows of a tile 32"):
        module.attention_paged(*wide.arguments, plan=plans[0])


def test_a_plan_is_told_of_other_widths_of_values(gallery_module: Gallery) -> None:
    module = gallery_module("causal")
    batch = make_batch((700, 33), head_dim=16, v_head_dim=48)
    given = (batch.q, batch.k_cache, batch.block_table, batch.seq_lens)
    plan = module.plan_paged(*given, **batch.queries, v_head_dim=48)
    planned = module.attention_paged(*batch.arguments, **batch.options, plan=plan)
    assert torch.equal(planned, module.attention_paged(*batch.arguments, **batch.options))
    with pytest.raises(ValueError, match="v_head_dim is 513; expected 1 to 512"):
        module.plan_paged(*given, **batch.queries, v_head_dim=513)


def plan_of(lengths: tuple[int, ...], at_once: int, room: int, BN: int = 16) -> list[tuple[int, int, int, int]]:
    """The items of a batch with one query a sequence and one row a tile."""
    items = torch.full((room, 4), -1, dtype=torch.int32)
    count = torch.zeros(1, dtype=torch.int32)
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    sizes = (len(lengths), len(lengths), 1, 1, max(lengths), 2**30, room, at_once, 0, 0)
    plan_splits[(len(lengths),)](items, count, seq_lens, None, *sizes, BM=16, BN=BN, BLOCK=16)
    return [tuple(item) for item in items[: int(count)].tolist()]


@pytest.mark.parametrize(
    ("lengths", "at_once"),
    [((16 * 2048,), 49), ((16 * 128,) * 16, 49), ((16 * 64,) * 64, 49), ((16 * 64,) * 64, 66), ((16 * 500,) * 3, 33)],
)
def test_a_plan_fills_whole_rounds(lengths: tuple[int, ...], at_once: int) -> None:
    """Sequences as long as each other: the GPU takes at most an eighth longer than if work were shared out exactly."""
    items = plan_of(lengths, at_once, len(lengths) + 3 * at_once)
    work = sum(lengths) // 16
    longest = max(ceil(lengths[b] // 16 / splits) for b, _, _, splits in items)
    assert ceil(len(items) / at_once) * longest <= 1.125 * work / at_once
    assert sorted((b, split) for b, _, split, _ in items) == [
        (b, split) for b in range(len(lengths)) for split in range(next(i[3] for i in items if i[0] == b))
    ]


def test_a_plan_shares_out_ragged_sequences() -> None:
    """What is dealt out in turn to programs as they come free ends within a third of an even share's time."""
    lengths = tuple(int(256 * 2 ** (7 * b / 63)) for b in range(64))
    items = plan_of(lengths, 49, 64 + 3 * 49)
    ends = [0] * 49
    for b, _, _, splits in items:
        ends[ends.index(min(ends))] += ceil(ceil(lengths[b] / 16) / splits)
    assert max(ends) <= 4 / 3 * sum(ceil(length / 16) for length in lengths) / 49


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


def test_a_plan_of_another_variant_is_refused(gallery_module: Gallery) -> None:
    """Its tiles may have other rows, its splits reach further back than a window."""
    batch = make_batch((20, 30))
    plan = gallery_module("sliding_window").plan_paged(*batch.planning[0])
    with pytest.raises(
        ValueError, match=r"^plan was made by sliding_window_\w+; expected one that causal_\w+ has made$"
    ):
        gallery_module("causal").attention_paged(*batch.arguments, plan=plan)


def test_one_element_has_no_gaps_whatever_its_stride(gallery_module: Gallery) -> None:
    """As a scheduler's numbers have it where sequences are rows of one table, and a batch is one of them."""
    module, batch = gallery_module("causal"), make_batch((13,))
    numbers = torch.tensor([[*batch.block_table[0, :1].tolist(), 13, 7]], dtype=torch.int32)
    found = module.attention_paged(*batch.arguments[:3], numbers[:, ::3], numbers[:, 1])
    assert torch.equal(found, module.attention_paged(*batch.arguments))


def test_it_is_one_operator_to_a_compiler(gallery_module: Gallery) -> None:
    module, batch = gallery_module("causal"), make_batch((20, 30))

    def step(*arguments: torch.Tensor) -> torch.Tensor:
        plan = module.plan_paged(arguments[0], arguments[1], *arguments[3:])
        return module.attention_paged(*arguments, plan=plan) * 2

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*batch.arguments), step(*batch.arguments))


def compiled_alone(step: Callable[..., torch.Tensor]) -> tuple[Callable[..., torch.Tensor], list[torch.fx.GraphModule]]:
    """A function compiled in one piece, and what it was compiled to, each time."""
    compilations: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        compilations.append(graph)
        return graph.forward

    torch._dynamo.reset()
    return torch.compile(step, fullgraph=True, backend=backend), compilations


def test_batches_of_all_sizes_are_one_to_a_compiler(gallery_module: Gallery) -> None:
    """Sizes become symbols once a second one comes; a plan's room follows from them."""
    module = gallery_module("causal")

    def step(*arguments: torch.Tensor) -> torch.Tensor:
        plan = module.plan_paged(arguments[0], arguments[1], *arguments[3:])
        return module.attention_paged(*arguments, plan=plan)

    compiled, compilations = compiled_alone(step)
    for size in (2, 3, 5, 9, 17, 40):
        batch = make_batch([20] * size)
        torch.testing.assert_close(compiled(*batch.arguments), step(*batch.arguments))
    assert len(compilations) == 2


def test_longest_lengths_are_no_constants_to_a_compiler(gallery_module: Gallery) -> None:
    """A step has its own, in Python: what is compiled serves all that have tiles of as many rows, 16 or 32 here."""
    module = gallery_module("causal")

    def step(ends: torch.Tensor, max_seqlen_q: int, max_seqlen_k: int, *arguments: torch.Tensor) -> torch.Tensor:
        told = {"cu_seqlens_q": ends, "max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k}
        plan = module.plan_paged(arguments[0], arguments[1], *arguments[3:], **told)
        return module.attention_paged(*arguments, **told, plan=plan)

    compiled, compilations = compiled_alone(step)
    for longest in range(2, 16):
        batch = make_batch((20, 30), (longest, 1))
        told = (batch.cu_seqlens_q, longest, 30 + longest)
        torch.testing.assert_close(compiled(*told, *batch.arguments), step(*told, *batch.arguments))
    assert len(compilations) == 3


def test_a_plan_made_before_is_no_constant_to_a_compiler(gallery_module: Gallery) -> None:
    module = gallery_module("causal")

    def step(plan: Any, *arguments: torch.Tensor) -> torch.Tensor:
        return module.attention_paged(*arguments, plan=plan)

    compiled, compilations = compiled_alone(step)
    for size in (2, 3, 5, 9, 17, 40):
        batch = make_batch([20] * size)
        plan = module.plan_paged(*batch.planning[0])
        torch.testing.assert_close(compiled(plan, *batch.arguments), step(plan, *batch.arguments))
    assert len(compilations) == 2
