"""Whatever lies in the cache, a call has a config, nothing waits, and what may be good stays."""

import errno
import json
import os
import pwd
import warnings
from dataclasses import replace

import hostile_records
import pytest
from hostile_records import KEY, LEFT, MALFORMED_BYTES, RECORD, TEXT

from flashgen.runtime import lookup as found_by
from flashgen.runtime import record_files
from flashgen.runtime.config import Config
from flashgen.runtime.identity import Identity
from flashgen.runtime.lookup import Lookup, lookup
from flashgen.runtime.record_files import RecordWarning, read_table, table_path
from flashgen.runtime.record_folders import NoCacheFolder, cache_folder
from flashgen.runtime.record_table import parse, to_text
from flashgen.runtime.records import Device
from flashgen.runtime.usable_records import usable_in

pytestmark = pytest.mark.filterwarnings("ignore::flashgen.runtime.record_files.RecordWarning")
DEFAULT = Config(BM=32, BN=32, num_warps=4, num_stages=1)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(record_files, "_reported", set())
    found_by.forget()


@pytest.fixture
def place(tmp_path):
    return table_path(tmp_path, KEY.gpu)


def ask(root):
    return lookup(KEY, {"user cache": root}, lambda bucket: DEFAULT).source


@pytest.mark.timeout(5)
@pytest.mark.parametrize("name", MALFORMED_BYTES)
def test_what_is_malformed_is_named_once_set_aside_and_survived(tmp_path, place, name):
    place.write_bytes(MALFORMED_BYTES[name])
    with pytest.warns(RecordWarning) as seen:
        assert [ask(tmp_path), ask(tmp_path)] == ["default", "default"]
    (said,) = [str(one.message) for one in seen if str(place) in str(one.message)]
    assert "set aside" in said and len(said) < 1000 and said.isprintable()
    assert not place.exists() and place.with_name(f"{place.name}.damaged").read_bytes() == MALFORMED_BYTES[name]


@pytest.mark.timeout(5)
@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_be_read_whole_is_named_once_and_stays(tmp_path, place, name):
    LEFT[name](place)
    before = os.lstat(place)
    with pytest.warns(RecordWarning) as seen:
        assert [ask(tmp_path), ask(tmp_path)] == ["default", "default"]
    assert len([one for one in seen if str(place) in str(one.message)]) == 1
    assert os.path.samestat(before, os.lstat(place)) and not place.with_name(f"{place.name}.damaged").exists()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EIO, errno.ESTALE, errno.EINTR])
@pytest.mark.parametrize("where", ["stat", "open", "fdopen"])
def test_a_good_record_outlives_a_system_that_cannot_read_it_now(tmp_path, place, monkeypatch, number, where):
    place.write_text(TEXT)

    def fails(path, *_, **__):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched, pytest.warns(RecordWarning, match="cannot be read"):
        patched.setattr(record_files.os, where, fails)
        assert ask(tmp_path) == "default"
    assert ask(tmp_path) == "user cache" and len(list(place.parent.iterdir())) == 1


def test_a_good_record_outlives_a_call_at_the_end_of_the_stack(tmp_path, place, monkeypatch):
    place.write_text(TEXT)

    def fails(*_, **__):
        raise RecursionError("maximum recursion depth exceeded")

    with monkeypatch.context() as patched, pytest.warns(RecordWarning, match="recursion"):
        patched.setattr("flashgen.runtime.record_table.json.loads", fails)
        assert ask(tmp_path) == "default"
    assert ask(tmp_path) == "user cache"


@pytest.mark.parametrize("variable", [None, "~nobody-of-this-name/cache"])
def test_without_a_home_a_call_has_the_shipped_records(tmp_path, monkeypatch, variable):
    def nobody(*_):
        raise KeyError("no such user")

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    for name in ("HOME", "XDG_CACHE_HOME", "FLASHGEN_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv("FLASHGEN_CACHE_DIR", variable)
    with pytest.raises(NoCacheFolder, match="FLASHGEN_CACHE_DIR"):
        cache_folder()
    table_path(tmp_path, KEY.gpu).write_text(TEXT)
    identity = Identity("alibi", KEY.spec, {"forward": KEY.templates}, "variants/alibi.yaml", {})
    find = Lookup(identity, "forward", lambda *_: DEFAULT, tmp_path)
    device = Device(KEY.gpu, KEY.capability, KEY.triton)
    with pytest.warns(RecordWarning, match="FLASHGEN_CACHE_DIR") as seen:
        for _ in range(2):
            assert find.find(device, "bfloat16", 128, 128, KEY.bucket).source == "shipped"
    assert len(seen) == 1


@pytest.mark.parametrize("kind", ["a file", "a loop", "a folder nobody may list"])
def test_a_cache_that_is_no_folder_is_survived(tmp_path, monkeypatch, kind):
    root = tmp_path / "tuned"
    if kind == "a file":
        root.write_text("")
    elif kind == "a loop":
        root.symlink_to("tuned")
    else:

        def refuses(*_, **__):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        monkeypatch.setattr(record_files.os, "stat", refuses)
        monkeypatch.setattr(type(root), "glob", refuses)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecordWarning)
        assert ask(root) == "default" and usable_in(root) == []


def test_a_record_of_another_gpu_does_not_block_a_place(tmp_path, place):
    """It would never be used, and never be replaced by a slower one of the right GPU."""
    place.write_text(to_text([replace(RECORD, key=replace(KEY, gpu="NVIDIA A100"))]))
    with pytest.warns(RecordWarning, match="nvidia-a100"):
        assert read_table(place) == ()
    assert not place.exists()


def test_a_record_that_was_just_written_is_not_set_aside_for_the_damaged_one_before_it(tmp_path, place, monkeypatch):
    place.write_text("{")
    read = record_files.parse

    def overtaken(text):
        if text == "{":
            fresh = tmp_path / "fresh"
            fresh.write_text(TEXT)
            os.replace(fresh, place)
        return read(text)

    monkeypatch.setattr(record_files, "parse", overtaken)
    assert read_table(place) == (RECORD,)
    assert [path.name for path in place.parent.iterdir()] == [place.name]


def test_records_that_were_ever_written_still_read(repository):
    shipped = sorted((repository / "generated").glob("*/tuned/*.json"))
    assert shipped
    for path in shipped:
        assert to_text(parse(path.read_text())) == path.read_text()


def test_the_corpus_has_no_good_record_in_it():
    assert parse(TEXT) == parse(hostile_records.table(hostile_records.FIELDS)) == (RECORD,)
    assert len(MALFORMED_BYTES) + len(LEFT) >= 150
    assert json.loads(TEXT)["format"] == 2
