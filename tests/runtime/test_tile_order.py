"""In which order programs of the kernels for Hopper take the tiles of packed sequences."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, product
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashgen.runtime.device import packed
from flashgen.runtime.device.order import order_sequences
from flashgen.runtime.device.sm90 import work_tiles
from flashgen.runtime.interpreter import interpreted

PROGRAMS = 5
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BN = 128


@dataclass(frozen=True)
class Pointer:
    """Into numbers of a test."""

    numbers: list[int]
    place: int = 0

    def __add__(self, steps: int) -> Pointer:
        return Pointer(self.numbers, self.place + steps)


LANGUAGE = SimpleNamespace(
    minimum=min, maximum=max, cdiv=lambda x, y: -(-x // y), where=lambda test, x, y: x if test else y,
    load=lambda pointer: pointer.numbers[pointer.place], num_programs=lambda axis: PROGRAMS,
)  # fmt: skip
INNER = ("count_tiles", "_heads_together", "_head_and_place", "_rank", "_packed_queries", "_other_side")


def read_as_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_tiles, "gl", LANGUAGE)
    for name in INNER:
        monkeypatch.setattr(work_tiles, name, getattr(work_tiles, name).fn)


@pytest.fixture
def as_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gluon has no interpreter: the functions are read as Python's own, a sequence's begin is its number."""
    read_as_python(monkeypatch)
    # One sequence has all slots, the tile in the last of them first.
    monkeypatch.setattr(work_tiles, "slot_tile", lambda cu, num_seqs, total, longest, slot, BLOCK: (0, slot, 0, 2**30))
    monkeypatch.setattr(work_tiles, "sequence_or_rest", lambda cu, b, num_seqs, total, longest: (b, cu[b]))
    monkeypatch.setattr(
        work_tiles, "sequence_range", lambda cu, b, num_seqs, total, longest: (b, cu[b] if b < num_seqs else 0)
    )


def slot_of(index: int, total: int, longest: int, heads: int) -> tuple[int, int]:
    """The head and the slot of an index, of one sequence."""
    sequences = ([total], [total], 1, total, total, None)
    _, _, head, tile, *_ = work_tiles.queries_at.fn(sequences, index, longest, longest, heads, BN)
    return head, 2**30 // BN - 1 - tile


@pytest.mark.usefixtures("as_python")
@pytest.mark.parametrize("heads", [1, 3, 8, 30])
@pytest.mark.parametrize("longest", [0, 1, 4096, 7000, 20000, 2**20])
def test_each_tile_of_each_head_comes_once(heads: int, longest: int) -> None:
    total = 5 * BN + 17
    slots = total // BN + 2
    found = [slot_of(index, total, longest, heads) for index in range(slots * heads)]
    assert sorted(found) == list(product(range(heads), range(slots)))
    # A program asks for what comes after the last tile too, and finds something that exists.
    assert {slot_of(slots * heads + more, total, longest, heads) for more in range(3)} == {found[-1]}


@pytest.mark.usefixtures("as_python")
def test_heads_come_together_as_far_as_their_rows_stay_in_the_cache() -> None:
    def first(longest: int) -> list[int]:
        return [slot_of(index, 3 * BN, longest, 16)[0] for index in range(10)]

    assert first(2048) == list(range(10))
    assert first(4096) == [*range(8), 0, 1]
    # Groups of like size: 8 and 8, not 10 and 6.
    assert first(3200) == [*range(8), 0, 1]
    assert first(2**20) == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]


@pytest.fixture
def packed_as_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for what finds a tile in cu_seqlens, for one program of PROGRAMS."""
    read_as_python(monkeypatch)
    monkeypatch.setattr(packed, "tl", LANGUAGE)
    monkeypatch.setattr(packed, "_begin", packed._begin.fn)
    for name in ("slot_tile", "sequence_range"):
        monkeypatch.setattr(work_tiles, name, getattr(packed, name).fn)


@pytest.mark.usefixtures("packed_as_python")
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("rest", [0, 200])
@pytest.mark.parametrize("lengths", [[0], [1, 0, 0], [0, 1, 300, 0, 257, 128, 5, 127, 129], [1000, 0, 24]])
def test_programs_find_each_tile_of_queries_once(lengths: list[int], rest: int, heads: int) -> None:
    ends = Pointer([0, *accumulate(lengths)])
    keys = [length // 2 for length in lengths]
    key_ends = Pointer([0, *accumulate(keys)])
    num_seqs, total_q, total_k = len(lengths), max(1, sum(lengths) + rest), max(1, sum(keys))
    sequences = (ends, key_ends, num_seqs, total_q, total_k, None)
    longest = max(1, *lengths, *keys)
    slots = work_tiles.count_tiles(ends, num_seqs, total_q, longest, 1, heads, BN)
    found = []
    for program in range(PROGRAMS):
        tile = work_tiles.next_queries.fn(sequences, program, None, longest, longest, heads, BN)
        while tile[0] < slots:
            found.append(tile[1:])
            tile = work_tiles.next_queries.fn(sequences, tile[0] + PROGRAMS, None, longest, longest, heads, BN)
    # What lies behind the last sequence passes for the last one, without keys.
    of_sequences = zip(range(num_seqs), lengths, ends.numbers, keys, key_ends.numbers, strict=False)
    behind = max(0, total_q - sum(lengths))
    wanted = [*of_sequences, (num_seqs - 1, behind, sum(lengths), 0, None)]
    assert sorted(each[:5] for each in found) == sorted(
        (b, h, tile, min(begin, total_q - 1), length)
        for b, length, begin, _, _ in wanted
        for h in range(heads)
        for tile in range(-(-length // BN))
    )
    for b, _, _, begin, _, begin_k, num_keys in found:
        is_rest = begin >= sum(lengths)
        assert num_keys == (0 if is_rest else keys[b])
        assert is_rest or num_keys == 0 or begin_k == key_ends.numbers[b]


def order_of(lengths: list[int]) -> list[int]:
    """The order of packed sequences of these lengths, as the device writes it; the last is what lies behind them."""
    interpreted()
    seqs = lengths[:-1]
    cu_seqlens = torch.tensor([0, *accumulate(seqs)], dtype=torch.int32, device=DEVICE)
    order = torch.full([2 * len(lengths) + 1], -7, dtype=torch.int32, device=DEVICE)
    numbers = (len(seqs), sum(lengths), max(seqs))
    order_sequences[(-(-len(lengths) // 64),)](cu_seqlens, order, *numbers, BN=BN, BLOCK=64)
    return order.tolist()


@given(lengths=st.lists(st.integers(0, 700), min_size=2, max_size=150).filter(any))
def test_the_longest_sequences_come_first(lengths: list[int]) -> None:
    tiles = [-(-length // BN) for length in lengths]
    expected = sorted(range(len(lengths)), key=lambda b: -tiles[b])
    assert order_of(lengths) == [*expected, *accumulate((tiles[b] for b in expected), initial=0)]


def test_sequences_that_lie_over_each_other_have_no_more_tiles_than_there_is_room_for() -> None:
    interpreted()
    cu_seqlens = torch.tensor([0, 2**24] * 300, dtype=torch.int32, device=DEVICE)
    order = torch.empty(2 * 600 + 1, dtype=torch.int32, device=DEVICE)
    order_sequences[(10,)](cu_seqlens, order, 599, 2**24, 2**24, BN=BN, BLOCK=64)
    sequences, first_tiles = order[:600].tolist(), order[600:].tolist()
    assert sorted(sequences) == list(range(600))
    assert first_tiles == sorted(first_tiles) and (first_tiles[0], first_tiles[-1]) == (0, 2**17 + 600)


@pytest.mark.usefixtures("as_python")
@pytest.mark.parametrize(("heads", "group"), [(1, 1), (4, 4), (4, 1), (30, 8), (30, 15)])
@pytest.mark.parametrize("lengths", [[300, 0], [0, 1, 0, 900], [1, 127, 128, 129, 4000, 0, 256, 5000, 0, 1]])
def test_the_tiles_of_long_sequences_come_first_each_once(lengths: list[int], heads: int, group: int) -> None:
    order, longest, num_seqs = Pointer(order_of(lengths)), max(lengths), len(lengths) - 1

    def tile(index: int) -> tuple[int, ...]:
        """Sequence, head, first key and length."""
        sequences = (lengths, lengths, num_seqs, sum(lengths), sum(lengths), order)
        work_tile = work_tiles.keys_at.fn(sequences, index, longest, longest, heads, group, BN)
        b, head, first_key, begin, length = work_tiles.key_tile.fn(work_tile, order, longest, 1, heads, None, BN)
        _, num_queries = work_tiles.other_range.fn(work_tile, lengths, b, longest)
        # What lies behind the last sequence, or is no tile, has no queries and passes for the last.
        is_sequence = begin < num_seqs and index < count
        assert (work_tile[0], b) == (index, begin if is_sequence else num_seqs - 1)
        assert num_queries == (lengths[b] if is_sequence else 0)
        return begin, head, first_key, length

    count = work_tiles.count_key_tiles.fn(order, num_seqs, longest, 1, heads, BN)
    found = [tile(index) for index in range(count)]
    owned = ((b, head, key, n) for b, n in enumerate(lengths) for head in range(heads) for key in range(0, n, BN))
    assert sorted(found) == sorted(owned)
    of_first_heads = [-(-length // BN) for _, head, _, length in found if head < group]
    assert of_first_heads == sorted(of_first_heads, reverse=True)
    # What comes after the last tile has no key.
    assert {tile(count + more)[2:] for more in range(3)} == {(BN, 1)}
