"""The default preset against tables of whole spaces: what it may miss, and what pruning may drop.

The tables in data/ were measured by `flashgen tune --exhaustive --table tests/tuning/data`; the others come from a
model of a GPU.
"""

import dataclasses
from pathlib import Path

import pytest
import synthetic
from fake_tools import LONG as PROBLEM
from fake_tools import FakeTools, session, workload
from replay import Compilation, Replay, replay

from flashgen.errors import UsageError
from flashgen.runtime.config import Config
from flashgen.runtime.defaults import default_config
from flashgen.runtime.registry import kernel_like
from flashgen.tuning.outcome import Entry
from flashgen.tuning.presets import EXHAUSTIVE, PRESETS, chosen
from flashgen.tuning.prune import verdict
from flashgen.tuning.session import Options, Session
from flashgen.tuning.table import Table, file_name, load, save

RECORDED = {path.stem: path for path in sorted(Path(__file__).with_name("data").glob("*.json"))}
SCHEDULED = ("document", "block_sparse")


@pytest.fixture(scope="module", params=[*synthetic.TABLES, *RECORDED])
def table(request):
    if request.param in RECORDED:
        return load(RECORDED[request.param])
    return synthetic.table(*synthetic.TABLES[request.param])


def times(table):
    return {entry.config: entry.timing.median_us for entry in table.entries if entry.timing}


def assert_near_the_best(table, seed, cache, share, trials=None):
    """The winner is within 1 % of the best, after at most this share of the measurements."""
    scheduled = frozenset({"forward"} if table.workload.key.variant in SCHEDULED else ())
    outcome, launched = replay(table, seed, cache, trials, scheduled=scheduled)
    best = min(times(table).values())
    assert times(table)[outcome.record.config] <= 1.01 * best
    assert len(set(launched)) == outcome.tried <= share * len(table.measured)


@pytest.mark.parametrize("seed", range(3))
def test_the_default_preset_comes_within_one_percent_of_the_best(table, cache, seed):
    assert_near_the_best(table, seed, cache, 1 / 5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", RECORDED)
def test_a_tenth_of_the_measurements_is_enough_on_a_gpu(name, cache, seed):
    measured = load(RECORDED[name])
    assert_near_the_best(measured, seed, cache, 1 / 10, len(measured.measured) // 10)


def test_pruning_drops_no_winner(table):
    best = min(times(table).values())
    winners = [entry for entry in table.entries if entry.timing and entry.timing.median_us < 1.02 * best]
    capability = table.workload.key.capability
    assert winners
    for e in winners:
        compiled = Compilation(e.registers, e.spills, e.shared, e.serialized_wgmma, None)
        assert verdict(compiled, capability, kernel_like(e.config).spill_limit(e.config)) == ""


def test_a_table_survives_its_file(table, tmp_path):
    path = tmp_path / "table.json"
    path.write_text(table.to_json())
    assert load(path) == table
    assert len(path.read_text().splitlines()) < len(table.entries) + 80


@pytest.mark.parametrize("name", RECORDED)
def test_a_table_that_is_measured_again_takes_the_place_of_the_old_one(name):
    assert file_name(load(RECORDED[name]).workload, "") == name


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2}', '{"format": 1, "key": {}}'])
def test_what_is_no_table_is_a_value_error(tmp_path, text):
    (tmp_path / "table.json").write_text(text)
    with pytest.raises(ValueError):
        load(tmp_path / "table.json")


def test_an_exhaustive_search_times_all_that_runs_also_what_pruning_drops(cache, tmp_path):
    whole = synthetic.table(*synthetic.TABLES["softcap-d64-s8192"])
    found = {entry.config: entry for entry in whole.entries}
    slow = {config for config, entry in found.items() if entry.dropped in ("spills", "serialized WGMMA")}
    assert slow

    tools = Replay(whole, 0)
    outcome = Session(tools, EXHAUSTIVE, [cache], Options()).tune(whole.workload, None)
    assert set(tools.launched) == {config for config, entry in found.items() if entry.timing}
    path = save(outcome, tmp_path / "tables")
    assert (
        path.name == file_name(whole.workload) == "softcap-forward-bfloat16-d64x64-bh32-g1-q8192-k8192-nvidia-h200.json"
    )
    measured = load(path)
    # What the table has not is dropped, as it does not compile.
    assert {e.config for e in measured.entries if e.dropped != "does not compile"} <= set(found)
    assert set(found) <= {e.config for e in measured.entries} and measured.best.config == whole.best.config
    assert {e.config for e in measured.entries if e.timing and e.dropped} == slow


def test_the_table_of_a_search_has_the_failures_and_the_final_timings(cache, tmp_path):
    usual = default_config("sm_90", "bfloat16", 128, 128)
    tools = FakeTools(fails={usual: "out of resources"})
    outcome = session(tools, cache, "default").tune(workload(PROBLEM), None)
    made = Table.of(outcome)
    entries = {entry.config: entry for entry in made.entries}
    assert entries[usual].failure == "out of resources"
    assert len(made.measured) == outcome.tried == PRESETS["default"].trials
    assert all(entries[final.config].timing == final.timing for final in outcome.ranking)
    assert made.measured_at == outcome.record.measured_at


def test_a_table_without_a_time_has_no_best():
    made = synthetic.table(*synthetic.TABLES["causal-d128-s2048"])
    with pytest.raises(UsageError, match="has a time"):
        dataclasses.replace(made, entries=(Entry(Config(64, 64, 4, 1), failure="crashed"),)).best  # noqa: B018


def test_an_exhaustive_search_has_no_limits():
    assert chosen("quick", exhaustive=True) is EXHAUSTIVE
    with pytest.raises(UsageError, match="exhaustive"):
        chosen("default", trials=5, exhaustive=True)
