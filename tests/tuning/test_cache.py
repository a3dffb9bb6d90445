"""Writing records: whole or not at all, and nothing is lost when many write."""

import errno
import multiprocessing
import os
import random
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
from known_records import KEY, RECORD

from flashgen.errors import EnvironmentProblem
from flashgen.runtime import record_files
from flashgen.runtime.config import Config
from flashgen.runtime.record_files import RecordWarning, read_table, table_path
from flashgen.runtime.records import Bucket
from flashgen.runtime.usable_records import read_record, usable_in
from flashgen.tuning.cache import (
    clear_records,
    export_records,
    write_record,
)
from flashgen.tuning.stored import find_record, list_records, shipped_folders

needs_permissions = pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")


def test_a_record_is_stored_where_its_key_says(tmp_path):
    assert write_record(RECORD, tmp_path) == RECORD
    assert read_record(tmp_path, KEY) == RECORD


def test_the_users_cache_is_the_default_place(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    write_record(RECORD)
    assert read_record(tmp_path / "tuned" / "alibi", KEY) == RECORD


def test_a_record_may_be_read_by_whom_the_users_files_may_be(tmp_path):
    before = os.umask(0o027)
    try:
        write_record(RECORD, tmp_path)
    finally:
        os.umask(before)
    assert table_path(tmp_path, KEY.gpu).stat().st_mode & 0o777 == 0o640


CONTENDERS = [
    replace(RECORD, median_us=700.0, config=Config(64, 64, 4, 2), measured_at="2025-01-01T00:00:00+00:00"),
    replace(RECORD, median_us=700.0, config=Config(64, 32, 4, 2), measured_at="2025-01-03T00:00:00+00:00"),
    RECORD,
    replace(RECORD, median_us=900.0, measured_at="2025-02-01T00:00:00+00:00"),
]


@pytest.mark.parametrize("seed", range(6))
def test_the_better_then_the_newer_record_stays_in_whatever_order_they_come(tmp_path, seed):
    for record in random.Random(seed).sample(CONTENDERS, len(CONTENDERS)):
        write_record(record, tmp_path)
    assert read_record(tmp_path, KEY) == CONTENDERS[1]


def test_replace_takes_the_place_of_a_better_record(tmp_path):
    write_record(CONTENDERS[1], tmp_path)
    write_record(RECORD, tmp_path, replace=True)
    assert read_record(tmp_path, KEY) == RECORD


def test_a_damaged_record_gives_way(tmp_path):
    path = table_path(tmp_path, KEY.gpu)
    path.write_text("{")
    with pytest.warns(RecordWarning):
        write_record(RECORD, tmp_path)
    assert read_table(path) == (RECORD,)


def write_twelve(root, number):
    """Six records of one's own and six of the one that all write."""
    for turn in range(6):
        own = Bucket.of(2**number, 1, 2**turn, 64)
        write_record(replace(RECORD, key=replace(KEY, bucket=own)), root)
        write_record(replace(RECORD, median_us=500.0 + (7 * number + 11 * turn) % 96), root)


def test_what_could_not_be_read_is_not_written(tmp_path):
    """It would be taken for damage, with all that the table has."""
    write_record(RECORD, tmp_path)
    for note in ("x" * 2001, "a\x1b[2J"):
        with pytest.raises(EnvironmentProblem, match="stays as it is"):
            write_record(replace(RECORD, key=replace(KEY, dtype="float16"), note=note), tmp_path)
    assert usable_in(tmp_path) == [RECORD]


def test_eight_writers_lose_nothing_and_tear_nothing(tmp_path):
    # Forked: the children only handle files, and a new interpreter each would take most of the test's time.
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_twelve, args=(tmp_path, number)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0] * 8
    records = usable_in(tmp_path)
    assert len(records) == 8 * 6 + 1
    least = min(500.0 + (7 * number + 11 * turn) % 96 for number in range(8) for turn in range(6))
    assert read_record(tmp_path, KEY).median_us == least
    assert list(tmp_path.rglob("*.tmp")) == []


def no_space(*_):
    raise OSError(28, "No space left on device")


def test_a_full_disk_leaves_the_old_record_and_no_litter(tmp_path, monkeypatch):
    write_record(RECORD, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(EnvironmentProblem, match=r"No space left on device; .*FLASHGEN_CACHE_DIR"):
            write_record(replace(RECORD, median_us=1.0), tmp_path)
    assert read_record(tmp_path, KEY) == RECORD
    assert list(tmp_path.rglob("*.tmp")) == []


def test_a_place_that_cannot_be_a_folder_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match="cannot be written"):
        write_record(RECORD, tmp_path / "file")


@needs_permissions
def test_a_read_only_folder_is_a_clear_error_and_keeps_the_old_record(tmp_path):
    write_record(RECORD, tmp_path)
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(EnvironmentProblem, match="cannot be written"):
            write_record(replace(RECORD, median_us=1.0), tmp_path)
        assert read_record(tmp_path, KEY) == RECORD
    finally:
        tmp_path.chmod(0o755)


def test_clearing_takes_what_matches_and_then_all(three):
    write_record(replace(RECORD, key=replace(KEY, dtype="float16")))
    assert clear_records(dtype="float16") == 1
    assert read_record(three / "alibi", KEY) == RECORD
    assert clear_records(variant="causal") == 1
    assert len(list_records()) == 2
    for end in (".damaged", ".2.damaged"):
        (three / "alibi" / f"nvidia-h200.json{end}").write_text("{")
    old = three / "nvidia-h200" / "alibi" / "forward.json"
    old.parent.mkdir(parents=True)
    old.write_text("{}")
    study = three.parent / "studies" / "nvidia-h200" / "alibi" / "forward.log"
    study.parent.mkdir(parents=True)
    study.write_text("")
    assert clear_records(variant="softcap") == 0 and study.exists()
    assert clear_records() == 2
    left = [path for path in three.parent.rglob("*") if path.is_file()]
    assert all(path.suffix == ".lock" and not path.stat().st_size for path in left)


WRITING = """
    import sys
    from dataclasses import replace
    sys.path.insert(0, {here!r})
    from test_cache import KEY, RECORD, write_record
    from flashgen.runtime.records import Bucket
    for n in range(60):
        bucket = Bucket(1, 1, 1 << n % 20, 1 << {place} * 20 + n // 20)
        write_record(replace(RECORD, key=replace(KEY, variant="beside", bucket=bucket)))
"""


def test_who_clears_the_cache_beside_writers_takes_no_lock_from_them(three, monkeypatch):
    """What is written after the records were listed stays."""
    monkeypatch.setattr("flashgen.tuning.cache.list_records", lambda *_, **__: [])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITING.format(here=str(Path(__file__).parent), place=place))],
            env=environment,
        )
        for place in range(2)
    ]
    while any(writer.poll() is None for writer in writers):
        clear_records()
        time.sleep(0.001)
    assert [writer.returncode for writer in writers] == [0, 0]
    assert len(usable_in(three / "beside")) == 120


def test_what_a_killed_writer_has_begun_goes_with_the_next(three):
    begun = three / "alibi" / ".nvidia-h200.json.tmp"
    begun.write_text("{")
    write_record(replace(RECORD, key=replace(KEY, dtype="float16")))
    assert not begun.exists()
    begun.write_text("{")
    alone = three / "other" / ".nvidia-h200.json.tmp"
    alone.parent.mkdir()
    alone.write_text("{")
    clear_records()
    assert not begun.exists() and not alone.exists()


def test_a_table_that_no_call_would_read_is_not_written(three, monkeypatch):
    path = three / "alibi" / "nvidia-h200.json"
    before = path.read_bytes()
    monkeypatch.setattr("flashgen.tuning.cache.MOST_BYTES", len(before) + 99)
    with pytest.raises(EnvironmentProblem, match="`flashgen cache clear` makes room"):
        write_record(replace(RECORD, key=replace(KEY, dtype="float16")))
    assert path.read_bytes() == before


@pytest.fixture
def out(tmp_path_factory):
    """A folder with the package of the variant alibi, whose kernels the records are of."""
    out = tmp_path_factory.mktemp("generated")
    (out / "alibi").mkdir()
    (out / "alibi" / "__init__.py").write_text(
        "from flashgen import runtime\n\nIDENTITY = runtime.Identity(\n"
        "    variant='alibi', spec='spec', templates={'forward': 'templates'}, source='alibi.yaml', arguments={}\n)\n"
    )
    return out


def test_a_record_that_is_shipped_too_is_found_by_its_name(three, out):
    export_records(list_records(), out)
    entry = find_record(KEY.name, [("user cache", three / "alibi"), *shipped_folders(out)])
    assert (entry.record, entry.source) == (RECORD, "user cache")


def test_what_is_exported_leaves_no_record_of_other_kernels_beside_these(three, out):
    """As after a change of the kernels: of what they were before the cache and the package have records."""
    before = replace(RECORD, key=replace(KEY, templates="what they were"))
    write_record(before)
    write_record(before, out / "alibi" / "tuned")
    exported = export_records(list_records(variant="alibi", gpu="NVIDIA H200"), out)
    assert (exported.copied, exported.left_out) == ((RECORD,), (before,))
    assert usable_in(out / "alibi" / "tuned") == [RECORD]


def test_what_has_no_package_is_not_exported(three, out):
    exported = export_records(list_records(), out)
    assert {record.key.variant for record in exported.left_out} == {"causal"}
    assert [path.name for path in out.iterdir()] == ["alibi"]


def test_exported_records_are_added_to_what_is_shipped(three, out):
    write_record(replace(RECORD, key=replace(KEY, dtype="float16")), out / "alibi" / "tuned")
    write_record(replace(RECORD, median_us=1.0), out / "alibi" / "tuned")
    paths = export_records(list_records(variant="alibi"), out).paths
    assert sorted(path.name for path in paths) == ["nvidia-h100.json", "nvidia-h200.json"]
    shipped = list_records(shipped_folders(out))
    assert len(shipped) == 3 and {entry.source for entry in shipped} == {"shipped"}
    assert read_record(out / "alibi" / "tuned", KEY) == RECORD


def test_what_a_newer_flashgen_wrote_is_not_written_over(tmp_path):
    path = table_path(tmp_path, KEY.gpu)
    path.write_text('{"format": 4}')
    for replaced in (False, True):
        with pytest.raises(EnvironmentProblem, match=r"format is 4, of a newer flashgen.*FLASHGEN_CACHE_DIR"):
            write_record(RECORD, tmp_path, replace=replaced)
    assert path.read_text() == '{"format": 4}'


def test_a_record_that_cannot_be_read_now_is_not_written_over(tmp_path, monkeypatch):
    """It may be the better one."""
    write_record(CONTENDERS[1], tmp_path)

    def fails(*_, **__):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched, pytest.raises(EnvironmentProblem, match="Too many open files"):
        patched.setattr(record_files.os, "fdopen", fails)
        write_record(RECORD, tmp_path)
    assert read_record(tmp_path, KEY) == CONTENDERS[1]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_what_is_no_file_is_named_and_left(tmp_path, make):
    path = table_path(tmp_path, KEY.gpu)
    make(path)
    with pytest.raises(EnvironmentProblem, match=f"{path} cannot be written: it is not a file"):
        write_record(RECORD, tmp_path)


def test_models_of_one_file_name_share_it(tmp_path):
    """ "NVIDIA-H200" is not "NVIDIA H200"."""
    other = replace(CONTENDERS[1], key=replace(KEY, gpu="NVIDIA-H200"))
    write_record(other, tmp_path)
    assert write_record(RECORD, tmp_path) == RECORD == read_record(tmp_path, KEY)
    assert read_record(tmp_path, other.key) == other


def test_without_a_home_the_remedy_is_named(monkeypatch):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", "~nobody-of-this-name/cache")
    for use in (lambda: write_record(RECORD), list_records, clear_records):
        with pytest.raises(EnvironmentProblem, match="name one in FLASHGEN_CACHE_DIR, in full"):
            use()


def test_a_cache_that_may_not_be_searched_is_said_not_taken_for_empty(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))

    def refused(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("os.listdir", refused)
    with pytest.warns(RecordWarning, match="cannot be searched for tuned records"):
        assert list_records() == []
