"""A model of the speed of configs that were not timed, from the few that were.

A Gaussian process over the logarithm of the time. Its kernel says what is known of kernels beforehand: each parameter
has an effect of its own, whatever the others are (another stage helps most tiles alike), and configs that are near in
all of them are alike. What is tried next is what may be fastest: expected to be fast, or far from all that is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from flashgen.runtime.config import Config
from flashgen.runtime.registry import backends

# Variances of the logarithm of the time: of one parameter's own effect, of what all of them do together, of noise.
ALONE, TOGETHER, NOISE = 0.05, 0.15, 3e-4
LENGTH = 1.3
# Steps between backends.
APART = 4.0
# How many standard deviations below its expectation a config is hoped to be.
HOPE = 0.7
# Logarithms of times beyond this above the best say "slow"; how slow does not matter and would bend the model.
SLOW = 1.0


def most_promising(known_us: Mapping[Config, float], free: Sequence[Config]) -> Config | None:
    """The free config that may be the fastest; None where too little is known to tell."""
    if len(known_us) < 2 or not free:
        return None
    times = np.log(list(known_us.values()))
    times = np.minimum(times - times.min(), SLOW)
    centre = np.median(times)
    axes = sorted({name for config in (*known_us, *free) for name in config.further})
    known, asked = _features(list(known_us), axes), _features(free, axes)
    across = _kernel(known, asked)
    weights = np.linalg.solve(_kernel(known, known) + NOISE * np.eye(len(known)), across)
    expected = weights.T @ (times - centre)
    doubt = np.sqrt(np.maximum(ALONE * known.shape[1] + TOGETHER - (weights * across).sum(0), 0))
    return free[int(np.argmin(expected - HOPE * doubt))]


def _features(configs: Sequence[Config], axes: Sequence[str]) -> np.ndarray:
    """Parameters in steps of about equal effect; with rows and warps goes what a warp has of the rows.

    Of the `axes` each value is a step; configs of two backends are strangers.
    """
    places = backends()
    rows = [
        (
            np.log2(c.BM), np.log2(c.BN), np.log2(c.num_warps), 0.8 * c.num_stages, np.log2(c.BM / c.num_warps),
            *(c.further.get(name, 0) if name != "backend" else APART * places.index(c.backend) for name in axes),
        )
        for c in configs
    ]  # fmt: skip
    return np.array(rows)


def _kernel(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    apart = (one[:, None] - two[None]) ** 2 / (2 * LENGTH**2)
    return ALONE * np.exp(-apart).sum(-1) + TOGETHER * np.exp(-apart.sum(-1))
