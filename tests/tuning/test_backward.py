"""The kernels of the backward: tuned one after the other, each by what it costs the whole pass."""

from concurrent.futures import Future

import pytest
from fake_bench import median_us
from fake_tools import DEVICE, IDENTITY, LONG, SHORT, FakeTools, session
from test_report import texts

from flashgen.runtime.record_table import parse, to_text
from flashgen.runtime.registry import FAMILIES
from flashgen.tuning import report as pictures
from flashgen.tuning.presets import PRESETS
from flashgen.tuning.timing import Timing
from flashgen.tuning.worker import RequestFailed
from flashgen.tuning.workloads import workloads

DQ_US = 40.0


class Backward(FakeTools):
    """dQ takes 40 us where its own kernel makes it, `added` times the rest where dK's and dV's does."""

    added = 0.0

    def time(self, workload, config, milliseconds, best_us):
        if workload.key.kernel == "backward_q":
            return Timing(DQ_US * median_us(config) / 100, 0.01, 10)
        if config.fuse_dq is not None and "all" in self.fails:
            raise RequestFailed("crashed")
        timing = super().time(workload, config, milliseconds, best_us)
        return Timing(timing.median_us + self.added * bool(config.fuse_dq), 0.01, 10)


def tuned(tools, cache, problems=(LONG,), preset="full"):
    one = session(tools, cache, preset)
    tasks = workloads(problems, IDENTITY, DEVICE, FAMILIES)
    return {task.key.kernel: one.existing(task) or one.tune(task, None) for task in tasks}


def test_the_forward_comes_first_and_dq_before_what_it_is_compared_with():
    order = [(w.key.kernel, w.problem) for w in workloads([LONG, SHORT], IDENTITY, DEVICE, FAMILIES)]
    assert order == [
        ("forward", LONG), ("forward", SHORT), ("backward_q", LONG), ("backward_kv", LONG), ("backward_q", SHORT),
        ("backward_kv", SHORT),
    ]  # fmt: skip


@pytest.mark.parametrize(("added", "fused", "total_us"), [(DQ_US - 10, 1, 130.0), (DQ_US + 10, 0, 140.0)])
def test_dq_is_made_where_it_costs_less(cache, added, fused, total_us):
    tools = Backward()
    tools.added = added
    found = tuned(tools, cache)
    assert found["backward_q"].record.median_us == DQ_US and found["backward_q"].record.config.fuse_dq is None
    record = found["backward_kv"].record
    assert (record.config.fuse_dq, record.median_us) == (fused, total_us)
    assert ("with 40.0 us of backward_q" in record.note) is (fused == 0)
    # Both ways were measured.
    assert {entry.config.fuse_dq for entry in found["backward_kv"].entries if entry.timing} >= {0, 1}


def test_a_recorded_dq_is_charged_too(cache):
    tools = Backward()
    tools.added = DQ_US + 10
    tuned(tools, cache)
    (path,) = cache.glob("*.json")
    path.write_text(to_text(record for record in parse(path.read_text()) if record.key.kernel != "backward_kv"))
    again = tuned(tools, cache)
    assert (again["backward_q"].status, again["backward_kv"].status) == ("found", "tuned")
    assert again["backward_kv"].record.median_us == 140.0


def test_without_a_config_for_dq_nothing_is_compared(cache):
    class Broken(Backward):
        def time(self, workload, config, milliseconds, best_us):
            if workload.key.kernel == "backward_q":
                raise RequestFailed("crashed")
            return super().time(workload, config, milliseconds, best_us)

    found = tuned(Broken(), cache, preset="quick")
    assert found["forward"].status == "tuned"
    assert (found["backward_q"].status, found["backward_kv"].status) == ("failed", "failed")
    assert "no config for backward_q" in str(found["backward_kv"])


def test_the_backward_has_a_smaller_share_of_the_trials(cache):
    found = tuned(Backward(), cache, preset="default")
    preset = PRESETS["default"]
    assert found["forward"].tried == preset.trials
    assert found["backward_q"].tried == found["backward_kv"].tried == preset.of("backward_q").trials < preset.trials


def test_the_map_has_panels_for_both_ways_to_make_dq(cache):
    outcome = tuned(Backward(), cache)["backward_kv"]
    figure = pictures.space(pictures.Table.of(outcome))
    titles = [axes.get_title() for axes in figure.axes]
    assert any("fuse_dq 0" in title for title in titles) and any("fuse_dq 1" in title for title in titles)
    numbers = [text for text in texts(figure) if text[:1].isdigit()]
    assert len(numbers) == outcome.tried


class Compiling(Backward):
    """The compilers are done with what a proof needs when somebody waits for it, or have been all along."""

    def __init__(self, done):
        super().__init__()
        self.needed, self.done, self.told = {}, done, []

    def rehearse(self, workload, config):
        return [(workload.key.kernel, workload.problem, config)]

    def begin(self, requests):
        futures = [self.needed.setdefault(each, Future()) for each in requests if isinstance(each, tuple)]
        return self.finished(futures) if self.done else futures

    def finished(self, futures):
        for future in futures:
            if not future.done():
                future.set_result(None)
        return futures

    def time(self, workload, *arguments):
        self.tell("timed", workload)
        return super().time(workload, *arguments)

    def prove(self, workload, config):
        assert self.needed[workload.key.kernel, workload.problem, config].done()
        self.tell("proven", workload)
        return super().prove(workload, config)

    def tell(self, what, workload):
        self.told += [(what, workload)] if (what, workload) not in self.told else []


@pytest.mark.parametrize("done", [True, False])
def test_while_the_compilers_make_a_proof_the_next_is_measured_unless_it_is_charged_with_it(cache, monkeypatch, done):
    tools = Compiling(done)
    monkeypatch.setattr("flashgen.tuning.proofs.wait", tools.finished)
    tasks = workloads([LONG, SHORT], IDENTITY, DEVICE, ("backward_q", "backward_kv"))
    outcomes = list(session(tools, cache).tune_each(tasks))
    assert all(outcome.record is not None for outcome in outcomes)
    timed, proven = ([task for event, task in tools.told if event == what] for what in ("timed", "proven"))
    q_long, kv_long, q_short, kv_short = tasks
    assert timed == tasks
    assert [outcome.workload for outcome in outcomes] == (tasks if done else [q_long, q_short, kv_long, kv_short])
    # A proof holds for both lengths, where these have one winner.
    assert proven == [q_long, kv_long]
    assert (tools.told.index(("proven", kv_long)) < tools.told.index(("timed", kv_short))) is done
    assert tools.told.index(("proven", q_long)) < tools.told.index(("timed", kv_long))
