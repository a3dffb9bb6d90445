"""How long a call keeps the host busy."""

from __future__ import annotations

import pytest
import torch
from gallery import VARIANTS

from flashgen.bench.candidates import FLASHGEN, FLEX
from flashgen.bench.host import host_times
from flashgen.bench.passes import BOTH, FORWARD

LIMIT_US = 40
ATTEMPTS = 3

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["full", "causal", "alibi", "softcap", "relative_bias", "sink"])
def test_a_forward_call_returns_within_40_us(name: str) -> None:
    found = []
    # What else the host does at the time only adds to it.
    while len(found) < ATTEMPTS and min(found, default=LIMIT_US) >= LIMIT_US:
        times = host_times(VARIANTS[name], FORWARD, candidates=[FLASHGEN])
        found.append(times[FLASHGEN])
    print(f"{name}: {', '.join(f'{each:.1f}' for each in found)} us on the host")
    if "H200" not in torch.cuda.get_device_name():
        pytest.skip("the limit is for the host of an H200")
    assert min(found) < LIMIT_US


def test_training_keeps_the_host_no_longer_than_flex_attention_does() -> None:
    times = host_times(VARIANTS["causal"], BOTH)
    print(f"forward and backward: {times[FLASHGEN]:.1f} us, FlexAttention {times[FLEX]:.1f} us")
    assert times[FLASHGEN] < times[FLEX]
