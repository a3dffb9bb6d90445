"""How long a launch is timed, with samples that are made up."""

from unittest.mock import MagicMock

import pytest
import torch

from flashgen import spec
from flashgen.codegen import generate, load_module
from flashgen.problems.problem import Problem
from flashgen.runtime.config import Config
from flashgen.runtime.records import Device
from flashgen.tuning import measure
from flashgen.tuning.timing import Timing
from flashgen.tuning.worker import RequestFailed
from flashgen.tuning.workloads import workloads


@pytest.fixture
def sampled(monkeypatch):
    """Every launch takes 100 us; what is returned are the numbers of samples that were taken."""
    counts = []

    def samples(replay, scratch, count):
        counts.append(count)
        return [100.0] * count

    monkeypatch.setattr(measure, "_samples", samples)
    return counts


def time(milliseconds, best_us):
    return measure.timed(lambda: None, None, milliseconds, best_us)


def test_what_is_far_from_the_best_is_not_timed_beyond_its_first_repetitions(sampled):
    timing = time(10, best_us=100 / measure.HOPELESS - 1)
    assert timing.hopeless and timing.median_us == 100
    assert sampled == [timing.repetitions] == [measure.FIRST_REPETITIONS]


@pytest.mark.parametrize("best_us", [None, 99.0, 100 / measure.HOPELESS + 1])
def test_what_may_win_is_timed_for_as_long_as_was_asked(sampled, best_us):
    timing = time(10, best_us)
    assert not timing.hopeless and timing.repetitions == sum(sampled) == 100


def test_a_short_launch_is_not_repeated_without_end(sampled):
    assert time(1000, None).repetitions == measure.FIRST_REPETITIONS + measure.MOST_REPETITIONS


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """What measures the kernels of a module, without its GPU; every config takes 100 us."""
    monkeypatch.setattr(measure, "torch", MagicMock(Tensor=torch.Tensor, cuda=MagicMock(OutOfMemoryError=MemoryError)))
    monkeypatch.setattr(measure, "_warm_up", lambda device: None)
    monkeypatch.setattr(measure, "captured", lambda launch: launch)
    monkeypatch.setattr(measure, "timed", lambda *_: Timing(100.0, 0.0, 3))
    monkeypatch.setattr(measure.KernelBench, "_launches", lambda *_: MagicMock())
    variant = spec.load({"name": "rebuilt", "causal": True, "head_dim": [64]})
    return lambda: measure.KernelBench(str(generate(variant, tmp_path)), variant, 0), tmp_path


def test_a_process_that_comes_later_measures_no_other_kernels_than_were_asked_for(bench):
    """What is recorded is of the text that the search began with."""
    make, folder = bench
    early = make()
    identity = load_module(folder / "rebuilt" / "__init__.py").IDENTITY
    task, *_ = workloads(
        [Problem(1, 8, 8, 512, 512, 64, 64, "bfloat16")], identity, Device("NVIDIA H200", "sm_90", "3.6")
    )
    request = measure.TimeRequest(task, Config(64, 64, 4, 2), 1.0)
    assert early(request).median_us == 100
    generate(spec.load({"name": "rebuilt", "softcap": 5.0, "head_dim": [64]}), folder)
    late = measure.KernelBench(str(folder / "rebuilt" / "__init__.py"), None, 0)
    with pytest.raises(RequestFailed, match="rebuilt meanwhile"):
        late(request)
    assert early(request).median_us == 100
