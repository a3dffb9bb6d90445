"""How long a launch is timed, with samples that are made up."""

import pytest

from flashgen.tuning import measure


@pytest.fixture
def sampled(monkeypatch):
    """Every launch takes 100 us; what is returned are the numbers of samples that were taken."""
    counts = []

    def samples(replay, scratch, count):
        counts.append(count)
        return [100.0] * count

    monkeypatch.setattr(measure, "_samples", samples)
    return counts


def time(milliseconds, best_us):
    return measure.timed(lambda: None, None, milliseconds, best_us)


def test_what_is_far_from_the_best_is_not_timed_beyond_its_first_repetitions(sampled):
    timing = time(10, best_us=100 / measure.HOPELESS - 1)
    assert timing.hopeless and timing.median_us == 100
    assert sampled == [timing.repetitions] == [measure.FIRST_REPETITIONS]


@pytest.mark.parametrize("best_us", [None, 99.0, 100 / measure.HOPELESS + 1])
def test_what_may_win_is_timed_for_as_long_as_was_asked(sampled, best_us):
    timing = time(10, best_us)
    assert not timing.hopeless and timing.repetitions == sum(sampled) == 100


def test_a_short_launch_is_not_repeated_without_end(sampled):
    assert time(1000, None).repetitions == measure.FIRST_REPETITIONS + measure.MOST_REPETITIONS
