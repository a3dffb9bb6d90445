"""Which files may have the code of a mod."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch

from flashgen.flex import foreign


def test_a_file_of_the_callers_is_not_foreign() -> None:
    assert not foreign.is_foreign(__file__)


@pytest.mark.parametrize(
    "file", [torch.__file__, np.__file__, foreign.__file__, json.__file__, "<stdin>", "/no/such.py"]
)
def test_files_that_have_no_mods_are(file: str) -> None:
    assert foreign.is_foreign(file)


def test_an_installed_package_may_have_mods(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also one whose name begins as torch's does, and one in a folder of Python's own library."""
    assert Path(sysconfig.get_paths()["stdlib"]) == foreign._LIBRARY
    monkeypatch.setattr(foreign, "_FOREIGN", (tmp_path / "site-packages" / "torch",))
    monkeypatch.setattr(foreign, "_LIBRARY", tmp_path)
    monkeypatch.setattr(foreign, "_INSTALLED", (tmp_path / "site-packages",))
    texts = [tmp_path / "site-packages" / name / "mods.py" for name in ("torchmods", "torch")] + [tmp_path / "json.py"]
    for text in texts:
        text.parent.mkdir(parents=True, exist_ok=True)
        text.touch()
    assert [foreign.is_foreign(str(text)) for text in texts] == [False, True, True]
