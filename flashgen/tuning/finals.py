"""Timing the best few again until their order is settled.

A rested card flatters whoever is timed first, and clocks drift: so every round times all finalists that are left, in
an order of its own, and configs are compared within rounds. Several GPUs hold rounds side by side.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import compress

from flashgen.runtime.config import Config
from flashgen.tuning.timing import Timing
from flashgen.tuning.worker import RequestFailed

# A finalist is out once it was slower than the leader in every one of so many rounds, by more than TIE in the median.
ROUNDS_TO_SETTLE = 4
# Finalists whose medians are this close, as a share, are a tie.
TIE = 0.005

# Times a config once; raises RequestFailed.
Time = Callable[[Config], Timing]
# What one round found; a config that failed is missing.
Round = Mapping[Config, float]


def finals(configs: Sequence[Config], gpus: Sequence[Time], rounds: int, seed: int = 0) -> list[tuple[Config, Timing]]:
    """Hold rounds, at most `rounds`, until one config leads; return all that never failed, the fastest first.

    Each of `gpus` times a config on one GPU. A config that fails once is no winner and is left out; a GPU on which all
    fail that run on another one holds no more rounds.
    """
    order = random.Random(seed)
    held: list[Round] = []
    playing, failed = list(configs), set[Config]()
    with ThreadPoolExecutor(len(gpus)) as pool:
        while playing and len(held) < rounds and (len(playing) > 1 or not held):
            draws = [order.sample(playing, len(playing)) for _ in gpus[: rounds - len(held)]]
            new = list(pool.map(_hold, gpus, draws))
            if len(playing) > 1 and any(new):
                gpus = [*compress(gpus, new), *gpus[len(new) :]]
                new = [one for one in new if one]
            held += new
            failed |= {config for config in playing if not all(config in one for one in new)}
            playing = _contenders([config for config in playing if config not in failed], held)
    return _ranked([config for config in configs if config not in failed], held)


def tied(ranking: Sequence[tuple[Config, Timing]], winner: Config) -> list[Config]:
    """The other configs that are as fast as the winner, as far as the rounds can tell."""
    limit = dict(ranking)[winner].median_us * (1 + TIE)
    return [config for config, timing in ranking if config != winner and timing.median_us <= limit]


def settled(ranking: Sequence[tuple[Config, Timing]], known: Sequence[Config]) -> list[tuple[Config, Timing]]:
    """The ranking with ties for the first place broken by `known`, where the search began: no change without need."""
    if not ranking:
        return []
    fastest = ranking[0][0]
    standing = [config for config in known if config in (fastest, *tied(ranking, fastest))]
    return sorted(ranking, key=lambda each: each[0] not in standing[:1])


def _hold(time: Time, draw: Sequence[Config]) -> Round:
    found = {}
    for config in draw:
        try:
            found[config] = time(config).median_us
        except RequestFailed:
            continue
    return found


def _contenders(playing: Sequence[Config], held: Sequence[Round]) -> list[Config]:
    if len(held) < ROUNDS_TO_SETTLE or not playing:
        return list(playing)
    leader = min(playing, key=lambda config: statistics.median(one[config] for one in held))
    return [config for config in playing if config == leader or not _beaten(config, leader, held)]


def _beaten(config: Config, leader: Config, held: Sequence[Round]) -> bool:
    ratios = [one[config] / one[leader] for one in held]
    return min(ratios) > 1 and statistics.median(ratios) > 1 + TIE


def _ranked(configs: Sequence[Config], held: Sequence[Round]) -> list[tuple[Config, Timing]]:
    """In the order of their times beside the leader's in the same rounds.

    A median is what these say beside the leader's of all rounds: who was out early was timed on a rested card.
    """
    samples = {config: [one[config] for one in held if config in one] for config in configs}
    if not configs:
        return []
    leader = min(configs, key=lambda config: (-len(samples[config]), statistics.median(samples[config])))
    ratios = {c: statistics.median(one[c] / one[leader] for one in held if {c, leader} <= set(one)) for c in configs}
    leader_us = statistics.median(samples[leader])
    timings = {c: replace(Timing.of(samples[c]), median_us=ratios[c] * leader_us) for c in configs}
    return [(config, timings[config]) for config in sorted(configs, key=lambda config: ratios[config])]
