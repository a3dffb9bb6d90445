"""Stepping from the fastest configs to their neighbours.

Speed changes gently from one config to the next, so most of what is worth a measurement lies beside what is fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple

from flashgen.runtime.config import Config

# How much slower than the best a config may be for its neighbours to be worth a step.
REACH = 1.25


def distance(one: Config, two: Config) -> int:
    """How many steps apart: doublings of tiles and warps, single stages."""
    *sizes, stages = zip(astuple(one), astuple(two), strict=True)
    return sum(abs(a.bit_length() - b.bit_length()) for a, b in sizes) + abs(stages[0] - stages[1])


def adjacent(one: Config, two: Config) -> bool:
    """Whether one step leads from one to the other: one parameter, or the rows of a tile together with its warps."""
    apart = distance(one, two)
    return apart == 1 or (apart == 2 and two.BM * one.num_warps == one.BM * two.num_warps != one.BM * one.num_warps)


def step(known_us: Mapping[Config, float], free: Iterable[Config]) -> Config | None:
    """The free neighbour of the fastest known config that has one: of several the one that promises most."""
    free = list(free)
    ranked = sorted(known_us, key=lambda config: known_us[config])
    for config in ranked:
        if known_us[config] > REACH * known_us[ranked[0]]:
            return None
        beside = [other for other in free if adjacent(config, other)]
        if beside:
            return min(beside, key=lambda other: (expected_us(other, known_us), str(other)))
    return None


def expected_us(config: Config, known_us: Mapping[Config, float]) -> float:
    """The mean of the known times, the nearer the heavier."""
    weights = {other: 4.0 ** -distance(config, other) for other in known_us}
    return sum(weight * known_us[other] for other, weight in weights.items()) / sum(weights.values())
