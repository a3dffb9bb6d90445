"""`flashgen tune` from the command line to its files, on a pretended GPU."""

from __future__ import annotations

import errno
import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from flashgen import files
from flashgen.cli import main
from flashgen.cli.tune import chosen_gpus
from flashgen.errors import UsageError
from flashgen.runtime.records import Device
from flashgen.tuning import machine
from flashgen.tuning import tune as tuning
from flashgen.tuning.clocks import Observation
from flashgen.tuning.outcome import Work
from flashgen.tuning.prune import CompileRequest
from flashgen.tuning.table import load
from flashgen.tuning.timing import Timing

DEVICE = Device("NVIDIA H200", "sm_90", "3.6")
SHAPE = "batch=1,heads=8,q_len=1024,head_dim=64"


class Resources:
    registers, spills, shared, serialized_wgmma, error = 128, 0, 65536, False, None


class Pretended:
    """A host with one GPU, on which the largest tiles are the fastest."""

    device = DEVICE

    def __init__(self, *_: object) -> None:
        self.gpus = [self]

    def __enter__(self) -> Pretended:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def time(self, workload, config, milliseconds, best_us):
        return Timing(1e6 / (config.BM + config.BN), 0.004, 20)

    def outliers(self, *_: object) -> dict:
        return {}

    def prove(self, *_: object) -> str:
        return ""

    def work(self, *_: object) -> Work:
        return Work(1e12, 1e8, 700.0, 4000.0)

    def begin(self, requests: list[CompileRequest]) -> list:
        return []

    def rehearse(self, *_: object) -> list:
        return []

    def prepare(self, problem: object) -> None:
        pass

    def compile(self, requests: list[CompileRequest], seconds: float) -> dict:
        return {request.config: Resources() for request in requests}

    def versions(self) -> dict:
        return {}

    @contextmanager
    def observed(self):
        observation = Observation()
        observation.add("1500, 1980", ["sm_mhz", "sm_max_mhz"])
        yield observation


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "gpus_at_hand", lambda indices: (list(indices or [0, 1]), DEVICE))
    monkeypatch.setattr(tuning, "Host", Pretended)
    Path("mine.yaml").write_text("name: mine\ncausal: true\ndtype: bfloat16\n")

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["flashgen", "tune", "mine.yaml", "--shape", SHAPE, *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        printed = capsys.readouterr()
        return int(left.value.code or 0), printed.out + printed.err

    return call


def test_the_ranking_tells_speed_and_resources(run) -> None:
    code, text = run("--preset", "quick")
    assert code == 0
    header = next(line for line in text.splitlines() if line.startswith("config"))
    assert all(c in header for c in ("us", "spread", "of best", "registers", "shared KiB", "TFLOP/s", "matrix product"))
    best = text.splitlines()[text.splitlines().index(header) + 1].split()
    assert {"100.0%", "128", "64"} <= set(best)
    assert "throttled: the clock ran at 1500 of 1980 MHz" in text


@pytest.mark.parametrize("full", ["tables", "pictures"])
def test_a_file_that_cannot_be_saved_keeps_no_other_back(run, monkeypatch, full) -> None:
    Path("mine.yaml").write_text("name: mine\ncausal: true\n")
    made = files.tempfile.mkstemp

    def first_fails(*arguments, dir, **options):
        if Path(dir).name == full and not failed:
            failed.append(dir)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return made(*arguments, dir=dir, **options)

    failed: list[Path] = []
    monkeypatch.setattr(files.tempfile, "mkstemp", first_fails)
    options = ("--kernel", "forward", "--trials", "6", "--table", "tables", "--report", "pictures")
    code, text = run(*options)
    assert code == 2 and "No space left on device" in text and "not saved" in text
    saved = {folder: len(list(Path(folder).iterdir())) for folder in ("tables", "pictures")}
    assert saved == ({"tables": 1, "pictures": 8} if full == "tables" else {"tables": 2, "pictures": 4})
    assert text.count("of matrix product") == 2


def test_what_was_measured_is_saved_before_the_next_search_begins(run, monkeypatch) -> None:
    """A process that is killed later has it."""
    Path("mine.yaml").write_text("name: mine\ncausal: true\n")
    seen = []

    def time(self, workload, *rest):
        seen.append((workload.key.dtype, [path.name for path in Path("tables").glob("*")]))
        return Timing(100.0, 0.004, 20)

    monkeypatch.setattr(Pretended, "time", time)
    assert run("--kernel", "forward", "--trials", "6", "--table", "tables")[0] == 0
    (dtype, before), (_, after) = seen[0], seen[-1]
    assert before == [] and len(after) == 1 and dtype in after[0]


def test_tables_and_pictures_are_saved_where_they_are_asked_for(run) -> None:
    code, text = run("--kernel", "forward", "--trials", "6", "--table", "tables", "--report", "pictures")
    (table,) = Path("tables").glob("*.json")
    assert code == 0 and str(table) in text
    assert len(load(table).measured) == 6
    assert len(list(Path("pictures").glob("*.png"))) == 4
    assert run("--kernel", "forward", "--table", "again")[0] == 0
    assert not Path("again").exists()  # Its record was there: nothing was measured.


def test_forward_and_backward_are_tuned_unless_one_is_chosen(run) -> None:
    code, text = run("--preset", "quick", "--kernel", "backward")
    assert code == 0 and "mine: backward_q, B1" in text and "mine: backward_kv, B1" in text
    assert "mine: forward" not in text
    code, text = run("--preset", "quick")
    assert code == 0 and "mine: forward, B1" in text and text.count("(recorded)") == 2
    code, text = run("--kernel", "sideways")
    assert code == 2 and "--kernel 'sideways'; expected one of forward, backward, all" in text


def test_the_document_has_every_entry(run) -> None:
    code, text = run("--trials", "5", "--json")
    document = next(json.loads(line) for line in text.splitlines() if line.startswith("{"))
    assert code == 0 and document["status"] == "tuned" and len(document["entries"]) >= 5
    assert document["work"]["ceiling_tflops"] == 700.0


def test_gpus_are_a_list_or_all() -> None:
    assert (chosen_gpus("all"), chosen_gpus("0"), chosen_gpus("0, 3")) == (None, [0], [0, 3])
    for wrong in ("", "0,", "one", "-1", "9" * 5000):
        with pytest.raises(UsageError, match="--gpus"):
            chosen_gpus(wrong)


def test_limits_of_an_exhaustive_search_are_refused(run) -> None:
    code, text = run("--exhaustive", "--trials", "5")
    assert code == 2 and "exhaustive" in text


@pytest.mark.parametrize("option", ["--trials=0", "--seed=-1", "--seed=4294967296"])
def test_numbers_out_of_range_are_refused_by_name(run, option: str) -> None:
    code, text = run(option)
    assert code == 2 and option.partition("=")[0] in text


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_a_budget_is_a_positive_number(run, seconds: str) -> None:
    code, text = run(f"--budget-seconds={seconds}")
    assert code == 2 and f"--budget-seconds {float(seconds)}; expected a positive number" in text


def test_what_was_measured_is_told_and_saved_where_another_workload_fails(run, monkeypatch) -> None:
    monkeypatch.setattr(Pretended, "prove", lambda self, workload, config: workload.key.dtype == "float16" and "no")
    dtypes = ("--dtype", "bfloat16", "--dtype", "float16")
    code, text = run("--kernel", "forward", "--trials", "3", "--table", "tables", "--json", *dtypes)
    documents = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert code == 1 and [document["status"] for document in documents] == ["tuned", "failed"]
    assert len(list(Path("tables").glob("*.json"))) == 2


def test_a_folder_that_takes_no_file_is_refused_before_the_search(run, monkeypatch) -> None:
    Path("shut").mkdir()
    monkeypatch.setattr("os.access", lambda path, mode: Path(path).name != "shut")
    code, text = run("--table", "shut/tables")
    assert code == 2 and "shut/tables cannot be written" in text
    assert not Path("cache/studies").exists()
