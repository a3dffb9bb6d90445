"""The example's engine without its kernels: whatever comes and goes, each sequence finds its own keys in its pages."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from engine.pages import Pages, prefixes
from engine.scheduler import Limits, Part, Request, Scheduler, Sequence
from engine.traffic import Traffic

LIMITS = Limits(max_batch=6, max_tokens=40, max_len=120, block_size=16, num_blocks=30)


class Cache:
    """For each slot the tokens up to the one whose key is there: what that key depends on."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.slots: dict[tuple[int, int], tuple[int, ...]] = {}

    def step(self, parts: list[Part]) -> None:
        """Write the parts' keys, and see that each sequence has all of its keys then."""
        for part in parts:
            for at in range(part.sequence.cached, part.sequence.cached + part.count):
                self.slots[self.place(part.sequence, at)] = tuple(part.sequence.tokens[: at + 1])
        for part in parts:
            for at in range(part.sequence.cached + part.count):
                found = self.slots[self.place(part.sequence, at)]
                assert found == tuple(part.sequence.tokens[: at + 1])

    def place(self, sequence: Sequence, at: int) -> tuple[int, int]:
        return sequence.pages[at // self.block_size], at % self.block_size


@pytest.mark.parametrize("num_blocks", [10, 30, 200])
def test_each_sequence_finds_its_own_keys(num_blocks: int) -> None:
    limits = Limits(**{**vars(LIMITS), "num_blocks": num_blocks})
    scheduler, cache, draw = Scheduler(limits), Cache(limits.block_size), random.Random(0)
    # Few words, so that texts begin alike by chance too.
    traffic = Traffic(rate=0.4, prompt=(1, 60), new=(1, 20), common=35).arrivals(2)
    sequences = []
    for requests in (*islice(traffic, 1000), *[[]] * 5000):
        sequences += [scheduler.add(request) for request in requests]
        parts = scheduler.schedule()
        assert sum(part.count for part in parts) <= limits.max_tokens and len(parts) <= limits.max_batch
        cache.step(parts)
        scheduler.advance(parts, [draw.randrange(2) for _ in parts])
    assert len(sequences) > 300 and all(sequence.finished for sequence in sequences)
    assert scheduler.pages.free == num_blocks
    assert sum(sequence.shared for sequence in sequences) > 1000


def test_who_decodes_goes_before_prompts_and_prompts_share_what_is_left() -> None:
    scheduler = Scheduler(LIMITS)
    first, long, last = (scheduler.add(Request(tuple(range(n)), 5)) for n in (3, 70, 10))
    counts = []
    for _ in range(4):
        parts = scheduler.schedule()
        counts.append([(part.sequence, part.count, part.yields) for part in parts])
        scheduler.advance(parts, [7] * len(parts))
    assert counts[0] == [(first, 3, True), (long, 37, False)]
    assert counts[1] == [(first, 1, True), (long, 33, True), (last, 6, False)]
    assert counts[2] == [(first, 1, True), (long, 1, True), (last, 4, True)]
    assert [count for _, count, _ in counts[3]] == [1, 1, 1]
    assert first.new_tokens == [7] * 4 and long.new_tokens == [7] * 3


def served(scheduler: Scheduler, request: Request) -> Sequence:
    """A request from its admission to its end, alone."""
    sequence = scheduler.add(request)
    while not sequence.finished:
        parts = scheduler.schedule()
        scheduler.advance(parts, [1] * len(parts))
    return sequence


def test_prompts_share_full_blocks_that_begin_alike() -> None:
    scheduler, text = Scheduler(LIMITS), tuple(range(40))
    first = served(scheduler, Request(text, 2))
    again = served(scheduler, Request((*text, 5), 2))
    assert (first.shared, again.shared) == (0, 32) and again.pages[:2] == first.pages[:2]
    # Of a prompt that is there as a whole the last token is brought again.
    assert served(scheduler, Request(text[:32], 1)).shared == 16
    # The second block alike, the first not.
    assert served(scheduler, Request((9, *text[1:]), 2)).shared == 0
    # New tokens are found too.
    assert served(scheduler, Request((*first.tokens[:42], *[1] * 6), 2)).shared == 32
    assert served(scheduler, Request((*text, *[1] * 8, 3), 2)).shared == 48


def test_pages_that_nobody_holds_are_found_until_they_are_taken() -> None:
    pages = Pages(3)
    one, other = pages.take(), pages.take()
    pages.publish(one, b"one")
    pages.publish(other, b"one")
    assert pages.find([b"one", b"two"]) == [one] and pages.find([b"two", b"one"]) == []
    pages.hold(one)
    pages.release(one)
    assert pages.free == 1
    pages.release(one)
    assert pages.free == 2 and pages.unheld([one, other]) == 1
    assert pages.find([b"one"]) == [one]
    pages.hold(one)
    pages.release(other)
    assert {pages.take(), pages.take()} == {other, 2}
    with pytest.raises(KeyError):
        pages.take()
    pages.release(one)
    assert pages.take() == one and pages.find([b"one"]) == []


def test_a_digest_is_of_all_tokens_up_to_a_blocks_end() -> None:
    one, other = (list(prefixes(tokens, 4)) for tokens in ((1, 2, 3, 4, 5, 6, 7, 8, 9), (0, 2, 3, 4, 5, 6, 7, 8)))
    assert len(one) == len(other) == 2
    assert len({*one, *other}) == 4
    assert one == list(prefixes((1, 2, 3, 4, 5, 6, 7, 8), 4))


@pytest.mark.parametrize("request_", [Request((), 3), Request((1,), 0), Request((1,) * 100, 21)])
def test_requests_that_can_never_run_are_refused(request_: Request) -> None:
    with pytest.raises(ValueError, match=r"expected 1 or more of each, 120 at most together"):
        Scheduler(LIMITS).add(request_)


def test_limits_have_a_token_for_each_sequence() -> None:
    with pytest.raises(ValueError, match="max_tokens is 5; expected max_batch, 6, or more"):
        Limits(**{**vars(LIMITS), "max_tokens": 5})
