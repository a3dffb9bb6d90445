"""The cache of a test."""

import pytest


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of the user's records, a new one."""
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    return tmp_path / "tuned"
