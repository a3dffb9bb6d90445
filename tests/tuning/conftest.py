"""The cache of a test."""

from dataclasses import replace

import pytest
from known_records import KEY, RECORD

from flashgen.tuning.cache import write_record


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of the user's records, a new one."""
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    return tmp_path / "tuned"


@pytest.fixture
def three(cache):
    """The same with three records."""
    records = [
        RECORD,
        replace(RECORD, key=replace(KEY, variant="causal")),
        replace(RECORD, key=replace(KEY, gpu="NVIDIA H100")),
    ]
    for record in records:
        write_record(record)
    return cache
