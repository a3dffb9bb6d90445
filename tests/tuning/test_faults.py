"""Tuning meets a full disk, a folder that it may not write, and records that are not for it."""

import multiprocessing
import os
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from fake_tools import DEVICE, FakeTools, session, workload
from fake_tools import LONG as PROBLEM
from test_study import SPACE, Fake

from flashgen import spec
from flashgen.codegen import generate, load_module
from flashgen.errors import EnvironmentProblem
from flashgen.runtime.config import Config
from flashgen.runtime.record_files import RecordWarning, table_path
from flashgen.runtime.records import Record
from flashgen.runtime.usable_records import read_record
from flashgen.tuning.cache import write_record
from flashgen.tuning.storage import journal_path
from flashgen.tuning.study import search

NOBODY = 65534


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KiB; returns its folder and what gives it more room."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder, lambda: subprocess.run(["mount", "-o", "remount,size=16m", str(folder)], check=True)
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_fills_up_ends_the_search_and_loses_at_most_one_trial(small_disk):
    folder, enlarge = small_disk
    seen = []
    with pytest.raises(EnvironmentProblem, match="No space left on device"):
        search(SPACE, [Fake()], place=folder / "study.log", watch=seen.append)
    assert 0 < len(seen) < len(SPACE)
    enlarge()
    again = Fake()
    with pytest.warns(RecordWarning, match="damaged"):  # The line that did not fit.
        result = search(SPACE, [again], place=folder / "study.log")
    assert len(again.asked) <= len(SPACE) - len(seen) + 1 and len(result.trials) == len(SPACE)


def test_a_full_disk_keeps_the_old_record(small_disk):
    folder, enlarge = small_disk
    record = Record(workload(PROBLEM).key, Config(128, 64, 8, 3), 800.0, 0.01, 20)
    write_record(record, folder)
    with (folder / "filler").open("wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(bytes(4096))
    with pytest.raises(EnvironmentProblem, match=r"No space left on device; .*FLASHGEN_CACHE_DIR"):
        write_record(replace(record, median_us=1.0), folder)
    assert read_record(folder, record.key) == record
    assert list(folder.rglob("*.tmp")) == []
    enlarge()
    assert write_record(replace(record, median_us=1.0), folder).median_us == 1.0


def tune_as_nobody(cache, pipe):
    """What a user who may only read the cache sees: what is found there, what tuning says, and what it measured."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
    os.environ["FLASHGEN_CACHE_DIR"] = str(cache)
    tools = FakeTools()
    found = session(tools, cache / "tuned", "quick").existing(workload(PROBLEM))
    try:
        session(tools, cache / "tuned", "quick", force=True).tune(workload(PROBLEM), None)
        said = "nothing"
    except EnvironmentProblem as problem:
        said = str(problem)
    pipe.send((found.record, said, len(tools.timed)))


def test_a_read_only_cache_is_read_and_refused_before_anything_is_measured(cache):
    session(FakeTools(), cache, "quick").tune(workload(PROBLEM), None)  # So that the child imports nothing.
    # Not below tmp_path, which only its owner may enter.
    folder = Path(tempfile.mkdtemp(prefix="flashgen-read-only-", dir="/tmp"))
    record = Record(workload(PROBLEM).key, Config(128, 64, 8, 3), 800.0, 0.01, 20)
    write_record(record, folder / "tuned")
    try:
        for path in (*folder.rglob("*"), folder):
            path.chmod(0o555 if path.is_dir() else 0o444)
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        child = context.Process(target=tune_as_nobody, args=(folder, theirs))
        child.start()
        assert ours.poll(60)
        found, said, measured = ours.recv()
        child.join(60)
    finally:
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)
    assert (found, measured, read_record(folder / "tuned", record.key)) == (record, 0, record)
    assert said.startswith("the study") and "Permission denied" in said and "FLASHGEN_CACHE_DIR" in said
    shutil.rmtree(folder)


def test_a_damaged_record_is_set_aside_and_tuned_anew(cache):
    path = table_path(cache, DEVICE.gpu)
    cache.mkdir()
    path.write_bytes(b'{"config": {"BM"')
    one = session(FakeTools(), cache, "quick")
    with pytest.warns(RecordWarning, match="set aside"):
        assert one.existing(workload(PROBLEM)) is None
    record = one.tune(workload(PROBLEM), None).record
    assert read_record(cache, record.key) == record and path.with_name(path.name + ".damaged").exists()


def test_a_study_that_is_garbage_is_set_aside_and_begun_anew(cache):
    path = journal_path(workload(PROBLEM))
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(range(256)) * 40)
    with pytest.warns(RecordWarning, match="damaged at byte 0"):
        outcome = session(FakeTools(), cache, "quick").tune(workload(PROBLEM), None)
    assert outcome.status == "tuned" and path.with_name(path.name + ".damaged").exists()


@pytest.mark.parametrize("field", ["templates", "spec"])
def test_a_record_of_another_kernel_is_neither_found_nor_applied_nor_a_start(cache, tmp_path, field):
    variant = spec.load({"name": f"changed_{field}", "causal": True})
    module = load_module(generate(variant, tmp_path / "generated"))
    task = workload(PROBLEM)
    identity = module.IDENTITY
    key = replace(task.key, variant=variant.name, spec=identity.spec, templates=identity.templates["forward"])
    odd = Config(32, 32, 8, 1)
    write_record(Record(replace(key, **{field: "another text"}), odd, 1.0, 0.01, 20))
    with pytest.warns(RecordWarning, match="no record"):
        choice = module.VARIANT.configs["forward"].find(DEVICE, key.dtype, key.head_dim, key.v_head_dim, key.bucket)
    assert (choice.source, choice.config != odd) == ("default", True)
    tools = FakeTools()
    one = session(tools, cache, "quick")
    assert one.existing(replace(task, key=key)) is None
    assert one.tune(replace(task, key=key), None).record.config != odd
    assert odd not in [config for _, config in tools.timed]
