"""Listing records: those of the user's cache, those beside kernels, by patterns and by name."""

from dataclasses import replace

import pytest
from known_records import KEY, RECORD

from flashgen.errors import UsageError
from flashgen.runtime.config import Config
from flashgen.runtime.record_files import RecordWarning, table_path
from flashgen.runtime.record_table import to_text
from flashgen.runtime.usable_records import read_record, usable
from flashgen.tuning.stored import find_record, list_records


def test_records_are_listed_by_patterns_of_their_key(three):
    assert len(list_records()) == 3
    assert [e.record.key.variant for e in list_records(gpu="*h200*")] == ["alibi", "causal"]
    assert [e.record.key.gpu for e in list_records(variant="alibi", gpu="*H100")] == ["NVIDIA H100"]
    assert len(list_records([("somewhere", three / "alibi")])) == 2
    with pytest.raises(UsageError, match="no field 'colour'"):
        list_records(colour="red")


def test_one_record_is_found_by_a_text_of_its_name(three):
    entry = find_record("h100/alibi")
    assert (entry.path, entry.source) == (three / "alibi" / "nvidia-h100.json", "user cache")
    for text, count in (("alibi", 2), ("softcap", 0)):
        with pytest.raises(UsageError, match=f"^{count} records match"):
            find_record(text)


def test_of_two_records_for_one_key_it_is_that_which_a_call_has(three, tmp_path):
    shipped = tmp_path / "shipped" / "alibi"
    shipped.mkdir(parents=True)
    table_path(shipped, KEY.gpu).write_text(to_text([replace(RECORD, median_us=900.0)]))
    folders = [("user cache", three / "alibi"), ("shipped", shipped)]
    entry = find_record("h200/alibi", folders)
    assert (entry.source, entry.record.median_us) == ("user cache", RECORD.median_us)
    assert find_record("h200/alibi", folders[::-1]).source == "shipped"


def test_a_config_that_no_kernel_has_is_listed_and_never_used(three):
    """As of another flashgen's kernel: a list shows what there is, and asks no kernel."""
    path = table_path(three / "alibi", KEY.gpu)
    path.write_text(to_text([replace(RECORD, config=Config(77, 64, 8, 3))]))
    assert [entry.record.config.BM for entry in list_records(variant="alibi", gpu="*H200")] == [77]
    with pytest.warns(RecordWarning, match=r"config BM is 77; expected .*set aside"):
        assert list_records(None, usable, variant="alibi", gpu="*H200") == []
    assert read_record(three / "alibi", KEY) is None and not path.exists()
