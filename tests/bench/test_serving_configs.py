"""The grid of configs for decoding: what is tried for a workload, and what is shown of it."""

from __future__ import annotations

import pytest

from flashgen.bench.serving import COPY, Workload, workloads
from flashgen.bench.serving_configs import BY_ITSELF, fastest, grid
from flashgen.runtime.registry import checked
from flashgen.tuning.timing import Timing


@pytest.mark.parametrize("work", list(workloads()), ids=lambda work: work.name)
def test_each_is_a_config_of_the_kernel(work: Workload) -> None:
    tried = list(grid(work))
    assert len(set(tried)) == len(tried) >= 12
    assert [checked("decode_paged" if work.block_size else "decode", config) for config in tried] == tried
    assert any(config.BM == 128 for config in tried) == (work.q_len == 512)


def test_the_best_are_shown_beside_what_they_are_held_against() -> None:
    times = {name: Timing.of([us]) for name, us in {"slow": 9.0, COPY: 7.0, "fast": 3.0, BY_ITSELF: 8.0}.items()}
    assert list(fastest(times, 1)) == [COPY, BY_ITSELF, "fast"]
    assert list(fastest(times, 5)) == [COPY, BY_ITSELF, "fast", "slow"]
