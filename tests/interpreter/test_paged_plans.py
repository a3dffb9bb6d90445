"""Plans for calls over a paged cache: how they share out the keys, and for which calls they are."""

from __future__ import annotations

from math import ceil
from pathlib import Path

import pytest
import torch
from gallery import VARIANTS
from paged_attending import RAGGED, SEVERAL, Gallery, attend

from flashgen.codegen import generate, load_module
from flashgen.problems.paged import make_batch
from flashgen.runtime.device.plan import plan_splits
from flashgen.spec import load


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


def test_a_plan_is_for_the_tiles_of_wide_values(gallery_module: Gallery) -> None:
    """They leave room for fewer rows."""
    batch = make_batch((100,), heads=64, kv_heads=1, dtype=torch.float16, head_dim=16, v_head_dim=512)
    module, (given, told) = gallery_module("causal"), batch.planning
    attend(module, VARIANTS["causal"], batch, plan=module.plan_paged(*given, **told))
    with pytest.raises(ValueError, match=r"plan is for .* rows of a tile 64; expected one for .* rows of a tile 16"):
        module.attention_paged(*batch.arguments, plan=module.plan_paged(*given))


def test_a_plan_for_fewer_keys_is_refused(gallery_module: Gallery) -> None:
    """It has no items for the splits behind them."""
    module, batch = gallery_module("causal"), make_batch((5000,), block_size=64)
    plan = module.plan_paged(*batch.planning[0], max_seqlen_k=2000, batch_invariant=True)
    module.attention_paged(*batch.arguments, max_seqlen_k=2000, plan=plan)
    with pytest.raises(ValueError, match=r"plan has room for 1 items on cpu; expected 3 on cpu"):
        module.attention_paged(*batch.arguments, plan=plan)


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


@pytest.mark.parametrize("more", [0, 1, 5, 40])
@pytest.mark.parametrize("lengths", [(0, 16 * 100, 1, 16 * 7), (16 * 90,) * 5, (16 * 300, *[16] * 20)], ids=str)
def test_a_plan_leaves_no_keys_out_however_little_room_there_is(lengths: tuple[int, ...], more: int) -> None:
    """Of each sequence all splits are there, one at least."""
    items = plan_of(lengths, 49, len(lengths) + more)
    assert len(items) <= len(lengths) + more
    for b, length in enumerate(lengths):
        of_b = [(split, splits) for own, _, split, splits in items if own == b]
        assert of_b == [(split, len(of_b) if length else 0) for split in range(max(1, len(of_b)))]


def test_a_plan_shares_out_ragged_sequences() -> None:
    """What is dealt out in turn to programs as they come free ends within a third of an even share's time."""
    lengths = tuple(int(256 * 2 ** (7 * b / 63)) for b in range(64))
    items = plan_of(lengths, 49, 64 + 3 * 49)
    ends = [0] * 49
    for b, _, _, splits in items:
        ends[ends.index(min(ends))] += ceil(ceil(lengths[b] / 16) / splits)
    assert max(ends) <= 4 / 3 * sum(ceil(length / 16) for length in lengths) / 49


def test_a_plan_of_another_variant_is_refused(gallery_module: Gallery) -> None:
    """Its tiles may have other rows, its splits reach further back than a window."""
    batch = make_batch((20, 30))
    plan = gallery_module("sliding_window").plan_paged(*batch.planning[0])
    with pytest.raises(
        ValueError, match=r"^plan was made by sliding_window_\w+; expected one that causal_\w+ has made$"
    ):
        gallery_module("causal").attention_paged(*batch.arguments, plan=plan)


def test_a_plan_made_otherwise_is_refused(gallery_module: Gallery) -> None:
    """Its splits depend on the batch, or are of another config's tiles."""
    module, batch = gallery_module("causal"), make_batch((20, 30))
    plan = module.plan_paged(*batch.planning[0])
    with pytest.raises(ValueError, match=r"^batch_invariant is True and the plan's is not; expected plan_paged\("):
        module.attention_paged(*batch.arguments, plan=plan, batch_invariant=True)
    with pytest.raises(ValueError, match=r"^config is 'BM=16 .*'; expected the plan's, None$"):
        module.attention_paged(*batch.arguments, plan=plan, config="BM=16 BN=16 num_warps=4 num_stages=1")
    invariant = module.plan_paged(*batch.planning[0], batch_invariant=True)
    found = module.attention_paged(*batch.arguments, plan=invariant)
    assert torch.equal(found, module.attention_paged(*batch.arguments, batch_invariant=True))
