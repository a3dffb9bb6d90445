"""The sampler proposes configs of its space through Optuna's own door."""

from itertools import product

import optuna
import pytest
from fake_bench import median_us

from flashgen.runtime.config import Config
from flashgen.tuning.proposals import Proposals
from flashgen.tuning.sampler import STALE_PROPOSALS, TPE_TURN, SpeedSampler
from flashgen.tuning.study import choices_of
from flashgen.tuning.timing import Timing
from flashgen.tuning.trial import Trial

SPACE = [Config(*values) for values in product((32, 64, 128, 256), (32, 64, 128), (4, 8), (1, 2, 3, 4))]
BEST = Config(128, 64, 8, 3)


@pytest.fixture
def proposals():
    return Proposals(optuna.create_study(direction="minimize"), SPACE, choices_of(SPACE), seed=0)


def measure(proposals, count):
    for _ in range(count):
        asked, config = proposals.next()
        proposals.settle(asked, Trial(config, Timing(median_us(config), 0.01, 10)))


def test_the_study_drives_the_search_and_finds_the_best_in_a_fifth_of_the_space(proposals):
    assert isinstance(proposals.study.sampler, SpeedSampler)
    proposals.enqueue([Config(64, 64, 4, 2), Config(32, 128, 4, 4)])
    measure(proposals, len(SPACE) // 5)
    assert min(proposals.times_us, key=proposals.times_us.get) == BEST
    # Nothing is left in the study for another process to stumble over.
    assert not proposals.study.get_trials(states=[optuna.trial.TrialState.WAITING])


def test_what_was_asked_for_first_is_not_the_samplers_to_change(proposals):
    first = [Config(64, 64, 4, 2), Config(256, 32, 8, 1)]
    proposals.enqueue(first)
    measure(proposals, 2)
    assert list(proposals.known) == first


def test_chance_names_what_is_left_where_tpe_has_only_known_proposals(proposals):
    proposals.enqueue(SPACE[:-1])
    measure(proposals, len(SPACE) - 1)
    last = proposals.params(SPACE[-1])
    assert (proposals.begun + 1) % TPE_TURN == 0
    asked = [proposals.study.ask(proposals.distributions).params for _ in range(STALE_PROPOSALS + 2)]
    assert last in asked
