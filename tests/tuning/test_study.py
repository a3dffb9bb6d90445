"""The search finds the best config, survives failures, and resumes."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from fake_bench import median_us

from flashgen.runtime.config import Config
from flashgen.runtime.record_files import RecordWarning
from flashgen.tuning import claims
from flashgen.tuning.study import Budget, search
from flashgen.tuning.timing import Timing
from flashgen.tuning.worker import RequestFailed

HERE = Path(__file__).parent
SPACE = [Config(*values) for values in product((32, 64, 128, 256), (32, 64, 128), (4, 8), (1, 2, 3, 4))]
BEST = Config(128, 64, 8, 3)


class Fake:
    """Measures by the landscape, and keeps account."""

    def __init__(self, fails=lambda config: ""):
        self.asked, self.known_best, self.fails = [], [], fails

    def __call__(self, config, best_us):
        self.asked.append(config)
        self.known_best.append(best_us)
        if self.fails(config):
            raise RequestFailed(self.fails(config))
        return Timing(median_us(config), 0.01, 10)


def test_a_small_space_is_searched_whole_each_config_once():
    fake = Fake()
    result = search(SPACE, [fake])
    assert sorted(fake.asked, key=str) == sorted(SPACE, key=str)
    assert result.ranking[0].config == BEST
    assert [t.timing.median_us for t in result.ranking] == sorted(median_us(c) for c in SPACE)


# Configs with an axis that others do not have, as those of two backends are.
MIXED = [*SPACE, *(replace(config, fuse_dq=fused) for config in SPACE for fused in (0, 1))]


class FakeOfTwoKinds(Fake):
    """What has the axis at 1 takes three quarters of the time, at 0 five quarters."""

    def __call__(self, config, best_us):
        timing = super().__call__(config, best_us)
        return replace(timing, median_us=timing.median_us * {None: 1.0, 0: 1.25, 1: 0.75}[config.fuse_dq])


def test_a_space_of_two_kinds_is_searched_as_one_and_remembered(tmp_path):
    fake, again = FakeOfTwoKinds(), FakeOfTwoKinds()
    result = search(MIXED, [fake], place=tmp_path / "study.log")
    assert sorted(fake.asked, key=str) == sorted(MIXED, key=str)
    assert result.ranking[0].config == replace(BEST, fuse_dq=1)
    assert len(search(MIXED, [again], place=tmp_path / "study.log").trials) == len(MIXED) and again.asked == []


@pytest.mark.parametrize("seed", range(3))
def test_the_better_kind_is_found_in_a_tenth_of_the_measurements(seed):
    fake = FakeOfTwoKinds()
    result = search(MIXED, [fake], budget=Budget(trials=len(MIXED) // 10), first=SPACE[:1], seed=seed)
    assert len(fake.asked) == len(set(fake.asked)) == len(MIXED) // 10
    assert result.ranking[0].config.fuse_dq == 1
    assert result.ranking[0].timing.median_us <= 1.1 * 0.75 * median_us(BEST)


@pytest.mark.parametrize("seed", range(3))
def test_a_fifth_of_the_measurements_comes_within_a_tenth_of_the_best(seed):
    fake = Fake()
    result = search(SPACE, [fake], budget=Budget(trials=len(SPACE) // 5), first=[Config(64, 64, 4, 2)], seed=seed)
    assert len(fake.asked) == len(set(fake.asked)) == len(SPACE) // 5
    assert set(fake.asked) <= set(SPACE)
    assert result.ranking[0].timing.median_us <= 1.1 * median_us(BEST)


def test_the_first_configs_are_tried_first_and_the_best_time_is_passed_on():
    fake = Fake()
    first = [Config(256, 32, 4, 1), BEST, Config(64, 64, 4, 2)]
    search(SPACE, [fake], budget=Budget(trials=5), first=[*first, Config(16, 16, 4, 1)])
    assert fake.asked[:3] == first
    assert fake.known_best[:4] == [None, median_us(first[0]), median_us(BEST), median_us(BEST)]


def test_failures_are_counted_by_reason_and_hide_nothing():
    fake = Fake(lambda c: "out of resources" if c.num_stages == 4 else "crashed" if c.BM == 256 else "")
    result = search(SPACE, [fake])
    assert result.failed == {"out of resources": 24, "crashed": 18}
    assert len(result.trials) == len(SPACE) and result.ranking[0].config == BEST


def test_where_everything_fails_there_is_no_ranking():
    result = search(SPACE[:5], [Fake(lambda c: "crashed")])
    assert result.ranking == [] and result.failed == {"crashed": 5}


def test_time_ends_the_search_but_not_before_one_measurement():
    result = search(SPACE, [Fake()], budget=Budget(seconds=0))
    assert len(result.trials) == 1


def test_ctrl_c_keeps_what_was_learned(tmp_path):
    def interrupted(config, best_us):
        if len(seen) == 7:
            raise KeyboardInterrupt
        return Timing(median_us(config), 0.01, 10)

    seen = []
    with pytest.raises(KeyboardInterrupt):
        search(SPACE, [interrupted], place=tmp_path / "study.log", watch=seen.append)
    fake = Fake()
    resumed = search(SPACE, [fake], place=tmp_path / "study.log")
    assert len(fake.asked) == len(SPACE) - 7 and resumed.ranking[0].config == BEST


def test_a_finished_study_answers_from_memory(tmp_path):
    fails = lambda c: "out of resources" if c.num_stages == 4 else ""  # noqa: E731
    once = search(SPACE, [Fake(fails)], place=tmp_path / "study.log")
    fake = Fake()
    again = search(SPACE, [fake], place=tmp_path / "study.log")
    assert fake.asked == []
    assert again.failed == once.failed
    assert [(t.config, t.timing) for t in again.ranking] == [(t.config, t.timing) for t in once.ranking]


PARENT = """
    import sys, time
    sys.path.insert(0, {here!r})
    from pathlib import Path
    from test_study import SPACE, Fake
    from flashgen.tuning.study import search
    fake = Fake()
    def slow(config, best_us):
        time.sleep(0.02)
        return fake(config, best_us)
    search(SPACE, [slow], place=Path({journal!r}), watch=lambda trial: print(len(fake.asked), flush=True))
"""


@pytest.mark.parametrize("torn", [False, True])
def test_a_search_killed_with_9_resumes_and_loses_at_most_the_running_trial(tmp_path, torn):
    journal = tmp_path / "study.log"
    code = textwrap.dedent(PARENT.format(here=str(HERE), journal=str(journal)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    for line in process.stdout:
        done = int(line)
        if done >= 20:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    fake = Fake()
    if torn:
        with journal.open("ab") as file:
            file.write(b'{"op_code":6,"trial_')
        with pytest.warns(RecordWarning, match="damaged at byte"):
            result = search(SPACE, [fake], place=journal)
    else:
        result = search(SPACE, [fake], place=journal)
    assert len(fake.asked) <= len(SPACE) - done
    assert len(result.trials) == len(SPACE) and result.ranking[0].config == BEST


CORRUPT = {
    "no text": b"\x00\xffgarbage\n",
    "no object": b'"op_code"\n',
    "no operation": b'{"op_code": 999, "worker_id": "x"}\n',
    "an operation on nothing": b'{"op_code": 6}\n',
    "a tower": b"[" * 100_000 + b"\n",
}


@pytest.mark.parametrize("line", CORRUPT.values(), ids=CORRUPT)
def test_a_corrupt_line_costs_what_comes_after_it(tmp_path, line, monkeypatch):
    # The line may have been the end of a trial that seems to have just begun.
    monkeypatch.setattr(claims, "UNSIGNED_FOR", 0.5)
    journal = tmp_path / "study.log"
    search(SPACE, [Fake()], place=journal, budget=Budget(trials=30))
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[len(lines) // 2] = line
    journal.write_bytes(b"".join(lines))
    fake = Fake()
    with pytest.warns(RecordWarning):
        result = search(SPACE, [fake], place=journal)
    assert 0 < len(fake.asked) < len(SPACE)
    assert len(result.trials) == len(SPACE) and result.ranking[0].config == BEST
    assert journal.with_name("study.log.damaged").read_bytes() == b"".join(lines)


def test_each_damaged_journal_is_kept(tmp_path):
    journal = tmp_path / "study.log"
    damage = [b"one\n", b"two\n"]
    for content in damage:
        journal.write_bytes(content)
        with pytest.warns(RecordWarning, match="kept as study.log"):
            search(SPACE, [Fake()], place=journal, budget=Budget(trials=2))
    assert [(tmp_path / f"study.log{end}").read_bytes() for end in (".damaged", ".2.damaged")] == damage


def test_what_another_version_measured_is_measured_again(tmp_path):
    journal = tmp_path / "study.log"
    search(SPACE, [Fake()], place=journal, budget=Budget(trials=30))
    journal.write_bytes(journal.read_bytes().replace(b'"median_us"', b'"median_ms"', 3))
    fake = Fake()
    result = search(SPACE, [fake], place=journal)
    assert len(fake.asked) == len(SPACE) - 27
    assert len(result.trials) == len(SPACE) and result.ranking[0].config == BEST


def test_a_search_goes_on_where_another_begins_its_study_anew(tmp_path):
    journal = tmp_path / "study.log"

    class Fresh(Fake):
        def __call__(self, config, best_us=None):
            if len(self.asked) == 5:
                journal.unlink()
                search(SPACE, [Fake()], place=journal, budget=Budget(trials=7))
            return super().__call__(config, best_us)

    result = search(SPACE, [Fresh()], place=journal, budget=Budget(trials=20))
    assert len(result.trials) == 20
    fake = Fake()
    search(SPACE, [fake], place=journal)
    assert len(fake.asked) == len(SPACE) - 7


def test_two_searches_share_a_journal_without_tearing_it(tmp_path):
    journal = tmp_path / "study.log"
    code = textwrap.dedent(PARENT.format(here=str(HERE), journal=str(journal)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, env=environment) for _ in range(2)
    ]
    deadline = time.monotonic() + 120
    assert [process.wait(max(1, deadline - time.monotonic())) for process in both] == [0, 0]
    fake = Fake()
    search(SPACE, [fake], place=journal)
    assert fake.asked == []
