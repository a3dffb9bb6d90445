"""Comparing candidates fairly: shuffled, interleaved rounds in one process, medians over the rounds.

A card that rests or throttles drifts by more than the differences of interest, so every candidate is timed in every
round, each round in an order of its own.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping
from typing import TypeVar

from flashgen.tuning.timing import Timing

# Of the scratch memory before each call: some 60 us each on an H200.
WRITES = 6

Key = TypeVar("Key")
Run = Callable[[], object]
# Microseconds of one call.
Timer = Callable[[Run], float]


def interleave(candidates: Mapping[Key, Run], timer: Timer, rounds: int, seed: int = 0) -> dict[Key, Timing]:
    """Time each candidate once in each round."""
    order = random.Random(seed)
    samples: dict[Key, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        names = list(candidates)
        order.shuffle(names)
        for name in names:
            samples[name].append(timer(candidates[name]))
    return {name: Timing.of(values) for name, values in samples.items()}


def cuda_timer(repeats: int = 5, enough_us: float = 50e3, flush_bytes: int = 256 << 20) -> Timer:
    """Times with CUDA events, the median of a few calls, each after a write that empties the L2 cache.

    Such writes also keep the GPU busy while the host launches, so that launch overhead, which autograd adds to, is not
    part of a long kernel's time.
    A call of more than `enough_us` microseconds is not repeated.
    """
    import torch

    scratch = torch.empty(flush_bytes, dtype=torch.int8, device="cuda")

    def samples(run: Run, count: int) -> list[float]:
        spans = []
        for _ in range(count):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            for _ in range(WRITES):
                scratch.zero_()
            start.record()
            run()
            end.record()
            spans.append((start, end))
        torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e3 for start, end in spans]

    def timer(run: Run) -> float:
        first = samples(run, 1)
        return statistics.median(first if first[0] > enough_us else first + samples(run, repeats - 1))

    return timer


def peak_bytes(run: Run) -> int:
    """The most GPU memory that one call holds beyond what was held before it, its output included."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
