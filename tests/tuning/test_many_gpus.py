"""Several GPUs and several hosts on one study."""

import threading
import time

import optuna
import pytest
from fake_tools import DEVICE, FakeTools, session, workload
from fake_tools import LONG as PROBLEM
from test_study import BEST, SPACE, Fake

from flashgen.errors import UsageError
from flashgen.runtime.config import Config
from flashgen.runtime.records import Device
from flashgen.tuning.machine import one_model
from flashgen.tuning.study import Budget, search
from flashgen.tuning.worker import RequestFailed


class Slow(Fake):
    """A GPU that takes a while, as real ones do."""

    def __init__(self, seconds=0.03):
        super().__init__()
        self.seconds = seconds

    def __call__(self, config, best_us):
        time.sleep(self.seconds)
        return super().__call__(config, best_us)


class Together(Fake):
    """A GPU whose measurements last until each of the others measures too."""

    def __init__(self, meeting):
        super().__init__()
        self.meeting, self.busy, self.overlapped = meeting, threading.Lock(), False

    def __call__(self, config, best_us):
        self.overlapped |= not self.busy.acquire(blocking=False)
        self.meeting.wait(60)
        try:
            return super().__call__(config, best_us)
        finally:
            self.busy.release()


@pytest.mark.parametrize("count", [2, 3])
def test_gpus_share_a_study_all_measure_all_the_time_and_nothing_twice(count, tmp_path):
    """Of GPUs that waited for each other one would wait here for ever."""
    meeting = threading.Barrier(count)
    gpus = [Together(meeting) for _ in range(count)]
    result = search(SPACE, gpus, place=tmp_path / "study.log")
    asked = [config for gpu in gpus for config in gpu.asked]
    assert len(asked) == len(set(asked)) == len(SPACE) and result.ranking[0].config == BEST
    assert all(len(gpu.asked) == len(SPACE) / count and not gpu.overlapped for gpu in gpus)


def test_the_budget_of_trials_is_for_all_gpus_together():
    gpus = [Slow(0.01), Slow(0.01)]
    result = search(SPACE, gpus, budget=Budget(trials=15), first=[Config(64, 64, 4, 2)])
    assert len(result.trials) == sum(len(gpu.asked) for gpu in gpus) == 15


class Lost(Fake):
    """A GPU that falls off the bus after so many measurements, and fails at once from then on."""

    def __init__(self, after=0, seconds=0.0):
        super().__init__()
        self.after, self.seconds = after, seconds

    def __call__(self, config, best_us):
        time.sleep(self.seconds)
        if len(self.asked) >= self.after:
            raise RequestFailed("crashed")
        return super().__call__(config, best_us)


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_gpu_that_fails_leaves_the_rest_to_the_others(after, tmp_path):
    gpus = [Lost(after), Slow(0.05), Slow(0.05)]
    result = search(SPACE[:20], gpus, place=tmp_path / "study.log")
    assert {trial.config for trial in result.ranking} == set(SPACE[:20]) and not result.failed
    assert sum(len(gpu.asked) for gpu in gpus) == 20 and len(gpus[0].asked) == after


def test_what_fails_on_every_gpu_fails():
    gpus = [Slow(0.01), Slow(0.01), Lost()]
    for gpu in gpus[:2]:
        gpu.fails = lambda config: "out of resources" if config in SPACE[4:16] else ""
    result = search(SPACE[:20], gpus)
    assert result.failed == {"out of resources": 12} and len(result.ranking) == 8


def test_where_no_gpu_runs_anything_all_fails():
    result = search(SPACE[:20], [Lost(seconds=0.001), Lost()])
    assert result.failed == {"crashed": 20}


def test_an_only_gpu_that_is_lost_spoils_no_study(tmp_path):
    first = search(SPACE, [Lost(10)], place=tmp_path / "study.log")
    assert len(first.trials) == len(first.ranking) == 10
    again = Fake()
    result = search(SPACE, [again], place=tmp_path / "study.log")
    assert len(result.ranking) == len(SPACE) and len(again.asked) == len(SPACE) - 10


def test_an_error_on_one_gpu_ends_the_others_and_is_raised(tmp_path):
    gpu = Slow()

    def interrupted(config, best_us):
        while not gpu.asked:
            time.sleep(0.001)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(SPACE, [gpu, interrupted], place=tmp_path / "study.log")
    assert 0 < len(gpu.asked) < len(SPACE)
    again = Fake()
    search(SPACE, [again], place=tmp_path / "study.log")
    assert len(again.asked) == len(SPACE) - len(gpu.asked)


class TwoGpus(FakeTools):
    """A host with two GPUs."""

    @property
    def gpus(self):
        return [self, self]


def test_a_session_uses_all_gpus_of_its_host(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    tools = TwoGpus()
    outcome = session(tools, tmp_path / "tuned", "default").tune(workload(PROBLEM), None)
    assert outcome.record.config == BEST and outcome.tried == len({config for _, config in tools.timed})


class Gone(FakeTools):
    """A GPU that has fallen off the bus."""

    def time(self, *asked):
        raise RequestFailed("crashed")


class OneOfTwo(TwoGpus):
    @property
    def gpus(self):
        return [self, Gone()]


def test_a_session_records_what_it_has_measured_though_one_of_its_gpus_is_lost(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    tools = OneOfTwo()
    outcome = session(tools, tmp_path / "tuned", "default").tune(workload(PROBLEM), None)
    assert outcome.status == "tuned" and outcome.record.config == BEST and not outcome.failed
    assert outcome.tried == len({config for _, config in tools.timed})


def test_gpus_of_different_models_are_refused():
    assert one_model({0: DEVICE, 1: DEVICE}) == DEVICE
    with pytest.raises(UsageError, match="GPU 1 is NVIDIA H100; expected GPUs of one model"):
        one_model({0: DEVICE, 1: Device("NVIDIA H100", "sm_90", "3.6")})


def test_gpus_of_different_models_share_no_study_whatever_the_storage(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    url = f"sqlite:///{tmp_path / 'study.db'}"
    for gpu in ("NVIDIA H200", "NVIDIA H100", "NVIDIA H200"):
        device = Device(gpu, "sm_90", "3.6")
        tools = FakeTools(device=device)
        task = workload(PROBLEM)
        task = type(task)(task.problem, type(task.key)(**{**vars(task.key), "gpu": gpu}))
        session(tools, tmp_path / "tuned", "quick", storage=url, force=True).tune(task, None)

    names = optuna.study.get_all_study_names(storage=url)
    assert len(names) == 2 and sum("NVIDIA H100" in name for name in names) == 1
    # The third run found its trials measured, and only held the final rounds.
    assert len({config for _, config in tools.timed}) <= 2


def test_where_no_config_worked_a_shared_study_is_no_answer_for_ever(tmp_path, monkeypatch):
    """What spoiled them all may be gone."""
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    url = f"sqlite:///{tmp_path / 'study.db'}"
    for trouble in ({"fails": {"all": "crashed"}}, {"wrong": {"all"}}, {}):
        outcome = session(FakeTools(**trouble), tmp_path / "tuned", "quick", storage=url).tune(workload(PROBLEM), None)
        assert (outcome.record is None) == bool(trouble)
    # But a record keeps what was measured.
    tools = FakeTools()
    session(tools, tmp_path / "tuned", "quick", storage=url, force=True).tune(workload(PROBLEM), None)
    assert len({config for _, config in tools.timed}) <= 2
