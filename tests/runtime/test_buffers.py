"""What a pass makes for itself alone is one tensor when it is repeated; what it returns is made as it is returned."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashgen.runtime.buffers import Buffers, maker
from flashgen.runtime.tracing import Buffer, Result

CPU = torch.device("cpu")


def buffer(*shape: int, dtype: torch.dtype = torch.float32, zeroed: bool = False, device: torch.device = CPU) -> Buffer:
    return Buffer(shape, torch.empty(shape, device="meta").stride(), dtype, device, zeroed)


def size_of(each: Buffer) -> int:
    return torch.Size(each.shape).numel() * each.dtype.itemsize


@given(
    sizes=st.lists(st.integers(0, 3000), max_size=6), zeroed=st.sets(st.integers(0, 5)),
    returned=st.sets(st.integers(0, 5)),
)  # fmt: skip
def test_what_is_returned_or_zeroed_is_alone_and_the_rest_together(
    sizes: list[int], zeroed: set[int], returned: set[int]
) -> None:
    before = [buffer(size, zeroed=number in zeroed) for number, size in enumerate(sizes)]
    alone = [number for number in range(len(sizes)) if number in zeroed | returned]
    results = [Result(number, None) for number in sorted(returned) if number < len(sizes)]
    made = Buffers.of(before, [None, *results])
    together = [number for number in range(len(sizes)) if number not in alone]
    assert len(made.buffers) == len(alone) + min(len(together), 1)
    assert made.results is not None and made.results[0] is None
    for old, new in zip(results, made.results[1:], strict=True):
        assert new is not None and made.buffers[new.number] == before[old.number]
    for number in alone:
        place, offset = made.places[number]
        assert made.buffers[place] == before[number] and offset == 0
    ends = 0
    for number in together:
        place, offset = made.places[number]
        assert place == made.places[together[0]][0] and offset >= ends and offset % 512 == 0
        ends = offset + size_of(before[number])
        assert ends <= size_of(made.buffers[place])


def test_strides_with_gaps_have_their_room() -> None:
    rows = Buffer((3, 4), (100, 1), torch.float16, CPU, zeroed=False)
    made = Buffers.of([rows, buffer(5)], None)
    assert made.places == [(0, 0), (0, 512)] and size_of(made.buffers[0]) == 532
    assert size_of(Buffers.of([buffer(5), rows], None).buffers[0]) == 512 + (2 * 100 + 4) * 2


def test_tensors_of_several_devices_are_not_one() -> None:
    made = Buffers.of([buffer(5), buffer(6, device=torch.device("meta"))], None)
    assert made.buffers == [buffer(5), buffer(6, device=torch.device("meta"))] and made.places == [(0, 0), (1, 0)]


@pytest.mark.parametrize("strides", [(12, 4, 1), (4, 8, 1), (20, 5, 1)])
def test_tensors_are_made_as_they_were(strides: tuple[int, ...]) -> None:
    for dtype in (torch.bfloat16, torch.float32, torch.int32, torch.uint8):
        made = maker(Buffer((2, 3, 4), strides, dtype, CPU, zeroed=False))()
        assert (made.shape, made.stride(), made.dtype, made.device) == ((2, 3, 4), strides, dtype, CPU)
        assert not maker(Buffer((2, 3, 4), strides, dtype, CPU, zeroed=True))().any()


def test_a_tensor_that_is_returned_twice_keeps_its_form() -> None:
    """Each result is a part of it in a form of its own."""
    parts = [((3, 4), (4, 1), 0), ((12,), (1,), 0)]
    made = Buffers.of([buffer(4, 3)], [Result(0, part) for part in parts])
    assert made.buffers == [buffer(4, 3)] and made.results == [Result(0, part) for part in parts]


GAPS = Buffer((3, 4), (100, 1), torch.float32, CPU, zeroed=False)


@pytest.mark.parametrize(
    ("made", "part"),
    [
        (buffer(4, 3), ((2, 3), (3, 1), 0)),  # some of its rows
        (buffer(4, 3), ((2, 3), (3, 1), 6)),
        (buffer(4, 3), ((4, 3), (0, 1), 0)),  # one of them, again and again
        (buffer(4, 3), ((2, 6), (1, 1), 0)),
        (GAPS, ((12,), (1,), 0)),  # its first row, and what lies behind it
        (GAPS, ((4, 3), (3, 1), 100)),
    ],
)
def test_a_part_leaves_room_for_what_a_pass_writes(made: Buffer, part: tuple[tuple[int, ...], ...]) -> None:
    found = Buffers.of([made], [Result(0, part)])
    assert found.buffers == [made] and found.results == [Result(0, part)]


@pytest.mark.parametrize("part", [((3, 4), (1, 3), 0), ((12,), (1,), 0), ((4, 1, 3), (3, 99, 1), 0)])
def test_what_is_returned_whole_is_made_as_it_is_returned(part: tuple[tuple[int, ...], ...]) -> None:
    found = Buffers.of([buffer(4, 3)], [Result(0, part)])
    assert found.buffers == [buffer(4, 3)._replace(shape=part[0], strides=part[1])]
    assert found.results == [Result(0, None)]
