"""Nothing is collected within the blocks, and afterwards Python collects as it did before."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator

import pytest
from side_by_side import side_by_side

from flashgen.runtime.collecting import no_collections


@pytest.fixture(params=[True, False], ids=["enabled", "disabled"])
def before(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether garbage is collected outside the blocks."""
    (gc.enable if request.param else gc.disable)()
    yield request.param
    gc.enable()


def test_collections_come_back_after_the_outermost_block(before: bool) -> None:
    with no_collections():
        with no_collections():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled() == before


def test_an_error_ends_the_block(before: bool) -> None:
    with pytest.raises(ZeroDivisionError), no_collections():
        _ = 1 / 0
    assert gc.isenabled() == before


def test_blocks_of_two_threads_may_overlap(before: bool) -> None:
    second_began, first_ended = threading.Event(), threading.Event()

    def first() -> None:
        with no_collections():
            assert second_began.wait(30)
        first_ended.set()

    def second() -> None:
        with no_collections():
            second_began.set()
            assert first_ended.wait(30)
            assert not gc.isenabled()

    side_by_side([first, second])
    assert gc.isenabled() == before


def test_many_threads_leave_it_as_it_was(before: bool) -> None:
    @no_collections()
    def often(times: int = 200) -> None:
        assert not gc.isenabled()
        if times:
            often(times - 1)

    calls: list[Callable[[], None]] = [often] * 8
    side_by_side(calls)
    assert gc.isenabled() == before
