"""In which order programs of the kernels for Hopper take the tiles of packed sequences."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import pytest

from flashgen.runtime.device.sm90 import sequences

# Gluon has no interpreter: the functions are read as Python's own.
_AS_PYTHON = SimpleNamespace(minimum=min, maximum=max, cdiv=lambda x, y: -(-x // y))


@pytest.fixture(autouse=True)
def _as_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "gl", _AS_PYTHON)
    monkeypatch.setattr(sequences, "_heads_together", sequences._heads_together.fn)
    # One sequence that has all slots.
    monkeypatch.setattr(sequences, "slot_tile", lambda cu, num_seqs, total, longest, slot, BLOCK: (0, slot, 0, 2**30))


def owner(index: int, total: int, longest: int, heads: int) -> tuple[int, int]:
    """The head and the slot of an index, of one sequence in tiles of 128."""
    _, head, slot, *_ = sequences._slot.fn(index, None, 1, total, longest, heads, 128)
    return head, slot


@pytest.mark.parametrize("heads", [1, 3, 8, 30])
@pytest.mark.parametrize("longest", [0, 1, 4096, 7000, 20000, 2**20])
def test_each_tile_of_each_head_comes_once(heads: int, longest: int) -> None:
    total = 5 * 128 + 17
    slots = total // 128 + 2
    found = [owner(index, total, longest, heads) for index in range(slots * heads)]
    assert sorted(found) == list(product(range(heads), range(slots)))
    # A program asks for what comes after the last tile too, and finds something that exists.
    assert {owner(slots * heads + more, total, longest, heads) for more in range(3)} == {found[-1]}


def test_heads_come_together_as_far_as_their_rows_stay_in_the_cache() -> None:
    def first(longest: int) -> list[int]:
        return [owner(index, 3 * 128, longest, 16)[0] for index in range(10)]

    assert first(2048) == list(range(10))
    assert first(4096) == [*range(8), 0, 1]
    # Groups of like size: 8 and 8, not 10 and 6.
    assert first(3200) == [*range(8), 0, 1]
    assert first(2**20) == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]
