"""The model of speed picks what measurements point to."""

from itertools import product

from fake_bench import median_us

from flashgen.runtime.config import Config
from flashgen.tuning.surrogate import most_promising

SPACE = [Config(*values) for values in product((32, 64, 128, 256), (32, 64, 128), (4, 8), (1, 2, 3, 4))]
BEST = Config(128, 64, 8, 3)


def test_with_one_time_or_nothing_left_there_is_no_telling():
    assert most_promising({SPACE[0]: 100.0}, SPACE[1:]) is None
    assert most_promising({c: median_us(c) for c in SPACE}, []) is None


def test_an_effect_seen_on_one_tile_is_expected_of_another():
    known = {Config(64, 64, 4, 1): 120.0, Config(64, 64, 4, 3): 100.0, Config(128, 64, 8, 1): 110.0}
    free = [Config(32, 64, 4, 1), Config(128, 64, 8, 3), Config(64, 64, 8, 1)]
    assert most_promising(known, free) == Config(128, 64, 8, 3)


def test_following_it_finds_the_best_of_96_configs_within_a_dozen():
    known = {config: median_us(config) for config in (Config(64, 64, 4, 2), Config(32, 128, 4, 4))}
    while len(known) < 12:
        found = most_promising(known, [config for config in SPACE if config not in known])
        known[found] = median_us(found)
    assert min(known, key=known.get) == BEST


def test_one_hopeless_time_does_not_bend_it():
    known = {c: median_us(c) for c in SPACE if c.BN == 64 and c != BEST}
    known[Config(256, 64, 8, 4)] = 1e6
    assert most_promising(known, [BEST, Config(32, 32, 4, 1), Config(32, 128, 4, 1)]) == BEST
