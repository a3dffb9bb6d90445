"""The final rounds settle an order, and admit it where they cannot."""

import pytest

from flashgen.runtime.config import Config
from flashgen.tuning.finals import ROUNDS_TO_SETTLE, finals, settled, tied
from flashgen.tuning.timing import Timing
from flashgen.tuning.worker import RequestFailed

FAST, SECOND, SLOW = (Config(64, 64, 4, stages) for stages in (1, 2, 3))
TIMES = {FAST: 100.0, SECOND: 101.5, SLOW: 110.0}


class Drifting:
    """A GPU that gets slower with every launch, as a rested card does."""

    def __init__(self, times=TIMES, drift=1.002, fails=()):
        self.times, self.drift, self.fails, self.asked = times, drift, fails, []

    def __call__(self, config):
        self.asked.append(config)
        if (config, len(self.asked)) in self.fails:
            raise RequestFailed("crashed")
        return Timing(self.times[config] * self.drift ** len(self.asked), 0.01, 10)


@pytest.mark.parametrize("seed", range(5))
def test_a_drift_favours_nobody(seed):
    gpu = Drifting()
    ranking = finals([SLOW, SECOND, FAST], [gpu], 20, seed)
    assert [config for config, _ in ranking] == [FAST, SECOND, SLOW]
    rounds = [gpu.asked[i : i + 3] for i in range(0, 3 * ROUNDS_TO_SETTLE, 3)]
    assert all(set(one) == set(TIMES) for one in rounds) and len(set(map(tuple, rounds))) > 1


def test_rounds_end_when_the_order_is_settled():
    gpu = Drifting(drift=1)
    assert tied(finals([FAST, SECOND, SLOW], [gpu], 50), FAST) == []
    assert len(gpu.asked) == 3 * ROUNDS_TO_SETTLE


def test_configs_alike_are_a_tie_after_the_last_round():
    gpu = Drifting({FAST: 100.0, SECOND: 100.2, SLOW: 110.0}, drift=1)
    ranking = finals([SLOW, SECOND, FAST], [gpu], 9)
    assert tied(ranking, FAST) == [SECOND]
    assert gpu.asked.count(FAST) == gpu.asked.count(SECOND) == 9 and gpu.asked.count(SLOW) == ROUNDS_TO_SETTLE


@pytest.mark.parametrize("seed", range(5))
def test_who_is_out_early_ties_with_nobody_for_a_drift_since(seed):
    gpu = Drifting({FAST: 100.0, SECOND: 100.2, SLOW: 102.0}, drift=1.004)
    ranking = finals([SLOW, SECOND, FAST], [gpu], 9, seed)
    assert gpu.asked.count(SLOW) < gpu.asked.count(FAST)
    assert SLOW not in tied(ranking, ranking[0][0]) and settled(ranking, [SLOW])[0][0] != SLOW
    assert [timing.median_us for _, timing in ranking] == sorted(timing.median_us for _, timing in ranking)


def test_a_tie_changes_no_config_that_is_known():
    gpu = Drifting({FAST: 100.0, SECOND: 100.2, SLOW: 110.0}, drift=1)
    ranking = finals([SLOW, SECOND, FAST], [gpu], 9)
    for known, winner in (([SLOW, SECOND, FAST], SECOND), ([FAST, SECOND], FAST), ([SLOW], FAST), ([], FAST)):
        found = settled(ranking, known)
        assert found[0][0] == winner
        assert sorted(found, key=str) == sorted(ranking, key=str)
    assert settled([], [FAST]) == []


def test_what_fails_once_is_no_winner():
    gpu = Drifting(drift=1, fails={(config, 5) for config in TIMES})
    ranking = finals(list(TIMES), [gpu], 8)
    lost = gpu.asked[4]
    assert [config for config, _ in ranking] == [config for config in TIMES if config != lost]


def test_several_gpus_share_the_rounds_and_are_compared_within_them():
    fast_gpu, slow_gpu = Drifting(drift=1), Drifting({c: 1.1 * us for c, us in TIMES.items()}, drift=1)
    ranking = finals(list(TIMES), [fast_gpu, slow_gpu], 8)
    assert [config for config, _ in ranking] == [FAST, SECOND, SLOW]
    assert len(fast_gpu.asked) == len(slow_gpu.asked) == 3 * ROUNDS_TO_SETTLE / 2


@pytest.mark.parametrize("launches", [0, 3])
def test_a_gpu_that_is_lost_takes_no_config_with_it(launches):
    gone = Drifting(drift=1, fails={(config, n) for config in TIMES for n in range(launches + 1, 99)})
    gpu = Drifting(drift=1)
    ranking = finals(list(TIMES), [gone, gpu], 8)
    assert [config for config, _ in ranking] == [FAST, SECOND, SLOW]
    # Nor is it asked again.
    assert len(gone.asked) <= launches + 3 and len(gone.asked) + len(gpu.asked) == 3 * (ROUNDS_TO_SETTLE + 1)


def test_a_config_that_is_lost_on_one_of_two_gpus_is_no_winner():
    gpus = [Drifting(drift=1), Drifting(drift=1, fails={(FAST, n) for n in range(99)})]
    assert [config for config, _ in finals(list(TIMES), gpus, 8)] == [SECOND, SLOW]
    assert finals([FAST], gpus, 8) == []


def test_nobody_left_is_no_ranking():
    assert finals([], [Drifting()], 8) == []
    assert finals([FAST], [Drifting(fails={(FAST, 1)})], 8) == []
