"""What the clocks were while a GPU was measured: from an nvidia-smi that is all pretence."""

import os
import time
from pathlib import Path

import pytest

from flashgen.tuning import clocks
from flashgen.tuning.clocks import Observation, observed, query, throttling

NAMES = ["sm_mhz", "sm_max_mhz", "power_w", "limits"]

SMI = """#!/bin/sh
case "$*" in
*clocks_event_reasons*) [ -n "$OLD" ] && exit 2 ;;
esac
while :; do
    echo "1700, 1980, 3201, [N/A], 60, 0x0000000000000004"
    [ -n "$WARNING" ] && echo "$WARNING"
    case "$*" in *-lms*) sleep 0.01 ;; *) exit 0 ;; esac
done
"""


def state(*lines):
    observation = Observation()
    for line in lines:
        observation.add(line, NAMES)
    return observation.state


@pytest.fixture
def smi(tmp_path, monkeypatch):
    script = tmp_path / "nvidia-smi"
    script.write_text(SMI)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(clocks.torch.cuda, "get_device_properties", lambda index: None)


@pytest.mark.parametrize("old", ["", "yes"])
def test_the_clocks_are_those_of_the_time_of_measuring(smi, monkeypatch, old):
    monkeypatch.setenv("OLD", old)
    with observed([0, 1]) as observation:
        deadline = time.monotonic() + 10
        while not observation.state and time.monotonic() < deadline:
            time.sleep(0.01)
    assert observation.state == {
        "sm_mhz": 1700.0, "sm_max_mhz": 1980.0, "memory_mhz": 3201.0, "temperature_c": 60.0, "limits": 4.0
    }  # fmt: skip


def test_what_it_warns_of_below_its_answer_is_no_part_of_that(smi, monkeypatch):
    """A record has the driver's version: one of two lines could not be read."""
    monkeypatch.setenv("WARNING", "WARNING: infoROM is corrupted at gpu 0000:3B:00.0")
    fields = [*clocks.FIELDS, "clocks_event_reasons.active"]
    assert query(0, fields)["clocks_event_reasons.active"] == "0x0000000000000004"


def test_without_nvidia_smi_nothing_is_seen(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(clocks.torch.cuda, "get_device_properties", lambda index: None)
    assert not Path(tmp_path, "nvidia-smi").exists()
    with observed([0]) as observation:
        pass
    assert observation.state == {} and throttling(observation.state) == ""


@pytest.mark.parametrize("text", ["[N/A]", "nan", "inf", "-1", "1e30", "0xfffffffffffffffffffffff", ""])
def test_what_no_gpu_has_is_not_taken_for_a_quantity(text):
    """In a record it could not be read."""
    assert state(f"{text}, 1980, {text}, {text}") == {"sm_max_mhz": 1980.0}


def test_a_resting_gpu_says_nothing_of_its_speed():
    busy = state("345, 1980, 80, 0x1", "345, 1980, 80, 0x1", "345, 1980, 80, 0x1", "1950, 1980, 600, 0x0")
    assert busy["sm_mhz"] == 1950.0 and throttling(busy) == ""


def test_a_reason_must_last():
    assert throttling(state(*["1965, 1980, 600, 0x0"] * 9, "1500, 1980, 700, 0x4")) == ""
    often = state(*["1965, 1980, 600, 0x0"] * 5, *["1935, 1980, 700, 0x24"] * 4)
    said = throttling(often)
    assert "the power cap and the temperature (software)" in said and "of 1980 MHz" in said


def test_a_slow_clock_is_told_also_without_a_reason():
    assert throttling(state("1500, 1980, 300, 0x0")) == "the clock ran at 1500 of 1980 MHz"
    assert throttling(state("1800, 1980, 300, 0x2")) == ""
