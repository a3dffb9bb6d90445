"""The plan of a paged call whose sequences two kernels share: which items each has."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import pytest
import torch

from flashgen.runtime.device.plan import plan_splits

BM, Q_BM, BN, GROUP, MOST_Q = 16, 128, 16, 2, 64

Items = list[list[int]]


def planned(
    q_lens: Sequence[int], kv_lens: Sequence[int], q_room: int, ends: Sequence[int] | None = None,
    most: int | None = MOST_Q,
) -> tuple[Items, Items]:  # fmt: skip
    """The items of the decode kernel and those of the forward kernel."""
    batch, total, room = len(q_lens), sum(q_lens), sum(-(-q * GROUP // BM) for q in q_lens) + 24
    items = torch.full((room + q_room + 64, 4), -1, dtype=torch.int32)
    count = torch.full((3,), -1, dtype=torch.int32)
    starts = torch.tensor(ends or [0, *accumulate(q_lens)], dtype=torch.int32)
    sizes = (batch, total, max(q_lens), GROUP, max(1, *kv_lens), 2**30, room, 8, 0, q_room)
    lengths = torch.tensor(kv_lens, dtype=torch.int32)
    plan_splits[(batch,)](
        items, count, lengths, starts, *sizes, BM=BM, BN=BN, BLOCK=16, MOST_Q=most, Q_BM=None if most is None else Q_BM
    )
    assert count[2] == -1 and (items[room + q_room :] == -1).all()
    few, many = int(count[0]), max(0, int(count[1]))
    assert few <= room and many <= q_room
    return items[:few].tolist(), items[room : room + many].tolist()


@pytest.mark.parametrize(
    "q_lens", [(1, 17, 100, 512, 700), (64, 65), (1, 1), (300,) * 40, (0, 700, 0), (63, 64, 1)], ids=str
)
def test_each_sequence_is_of_one_kernel(q_lens: tuple[int, ...]) -> None:
    kv_lens = [q + 33 * b for b, q in enumerate(q_lens)]
    room = sum(q_lens) // Q_BM + min(len(q_lens), sum(q_lens) // (MOST_Q + 1))
    few, many = planned(q_lens, kv_lens, room)
    tiles = {b: -(-q // Q_BM) for b, q in enumerate(q_lens) if q > MOST_Q}
    assert [item[:2] for item in many] == [[b, tile] for b, of in tiles.items() for tile in reversed(range(of))]
    assert {(b, tile) for b, tile, _, _ in few} == {
        (b, tile) for b, q in enumerate(q_lens) if q <= MOST_Q for tile in range(-(-q * GROUP // BM))
    }


def test_without_another_kernel_all_are_the_decode_kernels() -> None:
    few, many = planned((1, 100, 300), (40, 500, 300), 0, most=None)
    assert {item[0] for item in few} == {0, 1, 2} and not many


@pytest.mark.parametrize("ends", [[0, 900, 100, 400], [-5, 2000, 7, 10**9], [400, 300, 200, 100]])
def test_ends_that_are_wrong_write_nothing_out_of_bounds(ends: list[int]) -> None:
    room = 400 // Q_BM + 3
    _, many = planned((100, 200, 100), (100, 200, 300), room, ends)
    assert all(0 <= b < 3 and 0 <= tile < 4 for b, tile, _, _ in many)


@pytest.mark.parametrize(("longest", "room"), [(60, 45), (300, 6)])
def test_ends_of_more_queries_than_there_are_fill_the_room_and_no_more(longest: int, room: int) -> None:
    """Every other sequence seems to have all queries, of which there is room for one that has."""
    q_lens = [longest, *[1] * 13]
    ends = [0, *[sum(q_lens), 0] * 7]
    q_room = sum(q_lens) // Q_BM + min(len(q_lens), sum(q_lens) // (MOST_Q + 1))
    few, many = planned(q_lens, [400] * 14, q_room, ends)
    assert len(few if longest <= MOST_Q else many) == room
