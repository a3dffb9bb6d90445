"""Block masks whose blocks were listed by hand: what is seen of them, when they are read, and for how long what is made
of them is kept.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from flex_beside_torch import by_torch
from flex_mods import BATCH, HEADS, LENGTH, causal, sliding_window
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from flashgen.flex import flex_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LISTED = torch.tensor([[0], [1], [0]], dtype=torch.int32, device=DEVICE)
FULL = torch.tensor([[1], [0], [2]], dtype=torch.int32, device=DEVICE)


def blocks(mask: Any, *, with_full: bool = False) -> BlockMask:
    """One block of each row where `mask` holds; another that is full."""
    ones = torch.ones(1, 1, 3, dtype=torch.int32, device=DEVICE)
    full = (ones, FULL[None, None]) if with_full else ()
    return BlockMask.from_kv_blocks(
        ones, LISTED[None, None], *full, BLOCK_SIZE=16, mask_mod=mask, seq_lengths=(48, 48), compute_q_blocks=False
    )


def seen(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (LISTED[q // 16, 0] == k // 16) & (q >= k)


def inputs(batch: int = 1, heads: int = 2, length: int = 48) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = batch, heads, length, 16
    return [torch.randn(shape, generator=generator).to(DEVICE).requires_grad_() for _ in range(3)]


def expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Callable[..., Any]) -> torch.Tensor:
    """What torch's eager flex_attention computes in float64."""
    found: torch.Tensor = by_torch(None, mask)(q.double(), k.double(), v.double())
    return found


def lists_of(mask: Callable[..., Any]) -> list[torch.Tensor]:
    """The lists of a block mask that torch made, for the sizes of `flex_mods`."""
    made = create_block_mask(mask, BATCH, HEADS, LENGTH, LENGTH, device=DEVICE, BLOCK_SIZE=16)
    lists = made.kv_num_blocks, made.kv_indices, made.full_kv_num_blocks, made.full_kv_indices
    return [each.clone() for each in lists]


def of_lists(lists: list[torch.Tensor]) -> BlockMask:
    return BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=16, seq_lengths=(LENGTH, LENGTH))


def test_a_block_mask_that_was_made_of_blocks_is_one() -> None:
    q, k, v = inputs(BATCH, HEADS, LENGTH)
    listed = of_lists(lists_of(sliding_window)[:2])
    want = expected(q, k, v, lambda b, h, i, j: i // 16 >= j // 16)
    torch.testing.assert_close(flex_attention(q, k, v, None, listed).double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("listed", [[[0], [2]], [[0], [0]]])
def test_lists_of_blocks_may_be_shorter_than_there_are_blocks(listed: list[list[int]]) -> None:
    """As of kernels that choose a few blocks: what is not listed is not seen, wherever it is."""
    rows, columns = torch.tensor(listed, dtype=torch.int32, device=DEVICE), 16
    chosen = BlockMask.from_kv_blocks(
        torch.ones(1, 1, 2, dtype=torch.int32, device=DEVICE), rows[None, None], BLOCK_SIZE=(24, columns),
        seq_lengths=(48, 48), compute_q_blocks=False,
    )  # fmt: skip
    q, k, v = inputs()
    want = expected(q, k, v, lambda b, h, i, j: rows[i // 24, 0] == j // columns)
    torch.testing.assert_close(flex_attention(q, k, v, None, chosen).double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compiles", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("has_full", [False, True])
def test_what_is_not_listed_beside_a_mask_is_not_seen(has_full: bool, compiles: bool) -> None:
    """As compiled FlexAttention has it, for which kernels that choose a few blocks list them beside a causal mask."""
    listed = torch.tensor([[0], [1], [0]], dtype=torch.int32, device=DEVICE)
    full = torch.tensor([[2], [0], [1]], dtype=torch.int32, device=DEVICE)
    ones = torch.ones(1, 1, 3, dtype=torch.int32, device=DEVICE)
    chosen = BlockMask.from_kv_blocks(
        ones, listed[None, None], *((ones, full[None, None]) if has_full else ()), BLOCK_SIZE=16,
        seq_lengths=(48, 48), compute_q_blocks=False,
    )  # fmt: skip

    def seen(mask: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        own = (listed[i // 16, 0] == j // 16) & mask(b, h, i, j)
        return own | (full[i // 16, 0] == j // 16) if has_full else own

    q, k, v = inputs()
    attention = torch.compile(flex_attention, fullgraph=True, backend="eager") if compiles else flex_attention
    for chosen.mask_mod in (causal, causal, sliding_window):
        want = expected(q, k, v, functools.partial(seen, chosen.mask_mod))
        torch.testing.assert_close(attention(q, k, v, None, chosen).double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("has_full", [False, True])
@pytest.mark.parametrize(("sequences", "heads"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_each_sequence_and_each_head_may_have_blocks_of_its_own(sequences: int, heads: int, has_full: bool) -> None:
    """Listed beside a mask, in lists with a place for each block; with full blocks they have fewer."""
    order = [torch.randperm(3, generator=torch.Generator().manual_seed(each)) for each in range(12)]
    lists = torch.stack(order).view(2, 2, 3, 3)[:sequences, :heads].int().to(DEVICE)
    ones = torch.ones(sequences, heads, 3, dtype=torch.int32, device=DEVICE)
    # The second of each row is full.
    full = (ones, lists[..., 1:]) if has_full else ()
    chosen = BlockMask.from_kv_blocks(
        ones,
        lists[..., :2] if has_full else lists,
        *full,
        BLOCK_SIZE=16,
        mask_mod=causal,
        seq_lengths=(48, 48),
        compute_q_blocks=False,
    )

    def seen(b: Any, h: Any, q: Any, k: Any) -> Any:
        of = lists[b % sequences, h % heads, q // 16]
        own = (of[..., 0] == k // 16) & (q >= k)
        return own | (of[..., 1] == k // 16) if has_full else own

    q, k, v = inputs(batch=2)
    want = expected(q, k, v, seen)
    torch.testing.assert_close(flex_attention(q, k, v, None, chosen).double(), want, rtol=1e-5, atol=1e-5)


def test_blocks_of_another_size_are_read_anew() -> None:
    """Whoever has a block mask may say so of the same lists."""
    q, k, v = inputs()
    listed = blocks(causal)
    first = flex_attention(q, k, v, None, listed)

    def seen_of(rows: int, columns: int, b: Any, h: Any, q: Any, k: Any) -> Any:
        return (LISTED[q // rows, 0] == k // columns) & (q >= k)

    for listed.BLOCK_SIZE in ((16, 8), (24, 16), (16, 16)):
        want = expected(q, k, v, functools.partial(seen_of, *listed.BLOCK_SIZE))
        found = flex_attention(q, k, v, None, listed)
        torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=1e-5)
    assert torch.equal(found, first)
    listed.kv_indices = torch.tensor([[0], [1], [2]], dtype=torch.int32, device=DEVICE)[None, None]
    for length in (30, 48):
        q, k, v = inputs(length=length)
        listed.seq_lengths = (length, length)
        want = expected(q, k, v, lambda b, h, i, j: (i // 16 == j // 16) & (i >= j))
        torch.testing.assert_close(flex_attention(q, k, v, None, listed).double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("in_inference_mode", [False, True])
def test_blocks_that_are_changed_are_read_anew(in_inference_mode: bool) -> None:
    q, k, v = inputs(BATCH, HEADS, LENGTH)
    with torch.inference_mode(in_inference_mode):
        lists, others = lists_of(causal), lists_of(lambda b, h, q, k: (k >= 16) | (q < 16))
        listed = of_lists(lists)
        first = flex_attention(q, k, v, None, listed)
        for one, other in zip(lists, others, strict=True):
            one.copy_(other)
        second = flex_attention(q, k, v, None, listed)
        assert not torch.equal(first, second)
        assert torch.equal(second, flex_attention(q, k, v, None, of_lists(others)))
        listed.kv_num_blocks, listed.full_kv_num_blocks = (each.clone() for each in (lists[2], lists[0]))
        listed.kv_indices, listed.full_kv_indices = lists[3], lists[1]
        assert torch.equal(second, flex_attention(q, k, v, None, listed))


class Step:
    """What a server makes of each step: a mask that reads it, and the blocks of that mask."""

    def __init__(self, first: int) -> None:
        self.first = torch.tensor(first, device=DEVICE)
        self.blocks = blocks(lambda b, h, q, k: q + self.first >= k)


def test_a_block_mask_that_its_own_mask_has_goes() -> None:
    steps = [Step(each) for each in range(3)]
    for step in steps:
        flex_attention(*inputs(), None, step.blocks)
    gone = [weakref.ref(step.blocks) for step in steps]
    del step, steps
    gc.collect()
    assert [each() for each in gone] == [None] * 3


def of_fake_tensors(*qkv: torch.Tensor, blocks: BlockMask) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        flex_attention(*map(mode.from_tensor, qkv), None, blocks)


def in_a_checkpoint_that_chooses(*qkv: torch.Tensor, blocks: BlockMask) -> None:
    """Which keeps all that operators give, and wants as many of them again."""
    contexts = functools.partial(create_selective_checkpoint_contexts, lambda *_, **__: CheckpointPolicy.MUST_SAVE)

    def attend(*qkv: torch.Tensor) -> torch.Tensor:
        return flex_attention(*qkv, None, blocks) * torch.arange(16, device=DEVICE)

    checkpoint(attend, *qkv, use_reentrant=False, context_fn=contexts).sum().backward()


def in_a_transform(*qkv: torch.Tensor, blocks: BlockMask) -> None:
    q, k, v = (each.detach() for each in qkv)
    torch.func.grad(lambda q: flex_attention(q, k, v, None, blocks).sum())(q)


@pytest.mark.parametrize("first", [of_fake_tensors, in_a_checkpoint_that_chooses, in_a_transform])
def test_where_blocks_are_read_first_makes_no_difference(first: Callable[..., None]) -> None:
    listed = blocks(causal)
    first(*inputs(), blocks=listed)
    q, k, v = inputs()
    want = expected(q, k, v, seen)
    torch.testing.assert_close(flex_attention(q, k, v, None, listed).double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("with_full", [False, True])
def test_a_mask_of_integers_shows_what_is_not_0(with_full: bool) -> None:
    qkv = inputs()
    ours, other = (
        flex_attention(*qkv, None, blocks(each, with_full=with_full))
        for each in (causal, lambda b, h, q, k: (q >= k) * 2)
    )
    assert torch.equal(ours, other)


def test_lists_whose_data_is_assigned_are_read_anew() -> None:
    qkv, listed = inputs(), blocks(causal)
    first = flex_attention(*qkv, None, listed)
    listed.kv_indices = listed.kv_indices.clone()
    assert torch.equal(flex_attention(*qkv, None, listed), first)
    listed.kv_indices.data = FULL[None, None].clone()
    other = blocks(causal)
    other.kv_indices = FULL[None, None]
    found = flex_attention(*qkv, None, listed)
    assert not torch.equal(found, first)
    assert torch.equal(found, flex_attention(*qkv, None, other))


def changed(**lists: torch.Tensor) -> BlockMask:
    made = blocks(causal, with_full=True)
    for name, each in lists.items():
        setattr(made, name, each)
    return made


ONES = torch.ones(1, 1, 3, dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: blocks(causal)[:, :, 1], r"a slice of another, and slices have no mask_mod; expected one that was"),
        (lambda: changed(kv_num_blocks=ONES[0, 0], kv_indices=LISTED), r"kv_num_blocks has shape \(3,\) beside"),
        (lambda: changed(kv_num_blocks=ONES[:, :, :2]), r"kv_indices has shape \(1, 1, 3, 1\) beside .*\(1, 1, 2\)"),
        (lambda: changed(full_kv_num_blocks=ONES.expand(2, 2, 3)), r"full_kv_num_blocks has shape \(2, 2, 3\) beside"),
        (lambda: changed(full_kv_indices=FULL[None]), r"full_kv_indices .* expected \[batch, heads, rows, blocks\]"),
        (
            lambda: changed(
                kv_num_blocks=ONES[:, :, :2], kv_indices=LISTED[None, None, :2],
                full_kv_num_blocks=ONES[:, :, :2], full_kv_indices=FULL[None, None, :2],
            ),
            r"blocks of 2 times 16 queries; expected those of 48 or more",
        ),
    ],
    ids=["slice", "rank", "rows", "full sequences", "full rank", "short"],
)  # fmt: skip
def test_lists_that_do_not_fit_are_refused_by_name(given: Callable[[], BlockMask], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        flex_attention(*inputs(), None, given())
