"""Whether a second tuning run agrees with the tables of a first one."""

from dataclasses import replace
from subprocess import CompletedProcess

import measure_tables
import pytest
import synthetic
from replay import replay

from flashgen.tuning.agreement import LIMIT, agreements, main
from flashgen.tuning.cache import write_record
from flashgen.tuning.outcome import timed
from flashgen.tuning.table import file_name


@pytest.fixture(scope="module")
def table():
    return synthetic.table(*synthetic.TABLES["causal-d128-s2048"])


@pytest.fixture
def record(table, tmp_path, monkeypatch):
    """Of a search that knew nothing of the table."""
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "search"))
    return replay(table, 1, tmp_path / "search" / "tuned")[0].record


def saved(table, record, folder):
    (folder / "tables").mkdir()
    (folder / "tables" / file_name(table.workload)).write_text(table.to_json())
    write_record(record, folder / "records" / record.key.variant)
    return str(folder / "tables"), str(folder / "records")


def slowest(table):
    return max(timed(table.entries), key=lambda pair: pair[1].median_us)[0].config


def test_a_second_search_agrees(table, record, tmp_path, capsys):
    assert main(saved(table, record, tmp_path)) == 0
    assert "1 of 1 within 2%" in capsys.readouterr().out


def test_a_slow_config_does_not_agree(table, record, tmp_path, capsys):
    assert main(saved(table, replace(record, config=slowest(table)), tmp_path)) == 1
    assert "0 of 1 within 2%" in capsys.readouterr().out


def test_the_ratio_is_of_times_in_the_table_alone(table, record):
    (one,) = agreements([table], [replace(record, median_us=1.0)])
    times = {entry.config: timing.median_us for entry, timing in timed(table.entries)}
    assert one.ratio == pytest.approx(times[record.config] / min(times.values())) and 1 <= one.ratio <= LIMIT


def test_what_the_table_has_no_time_of_does_not_agree(table, record):
    left = tuple(entry for entry in table.entries if entry.config != record.config)
    (one,) = agreements([replace(table, entries=left)], [record])
    assert one.ratio is None and not one.ok and "not in the table" in str(one)


def test_another_text_is_named_and_another_workload_left_out(table, record):
    other = replace(record, key=replace(record.key, templates="0" * 12))
    (one,) = agreements([table], [other])
    assert one.ok and "another kernel's text" in str(one)
    assert not list(agreements([table], [replace(record, key=replace(record.key, dtype="float16"))]))


def test_nothing_to_compare_is_no_agreement(table, record, tmp_path):
    tables, _ = saved(table, record, tmp_path)
    assert main([tables, str(tmp_path / "nothing")]) == 1


def test_the_search_that_is_compared_finds_no_record(monkeypatch):
    """Those of the gallery are shipped beside its kernels, and what has a record is not searched."""
    ran = []

    def tuned(line, env, check):
        ran.append((line, env["FLASHGEN_CACHE_DIR"]))
        return CompletedProcess(line, 0)

    monkeypatch.setattr(measure_tables.subprocess, "run", tuned)
    monkeypatch.setattr("sys.argv", ["measure_tables.py", "--agree"])
    assert measure_tables.main() == 1  # Nothing was recorded.
    assert len(ran) == len(measure_tables.WORKLOADS)
    assert all(f"--out={cache}/generated" in line for line, cache in ran)
