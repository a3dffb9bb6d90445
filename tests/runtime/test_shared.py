"""A generated package of another version of flashgen says so, and how to make it anew."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flashgen import runtime

GALLERY = Path(__file__).parents[2] / "generated"


@pytest.mark.parametrize(
    ("file", "now", "then", "missing"),
    [
        ("forward.py", "import first_row,", "import row_of_old,", "flashgen.runtime.device.packed has no 'row_of_old'"),
        ("forward.py", "runtime.device.packed", "runtime.device.old", "there is no flashgen.runtime.device.old"),
        ("backward_q_sm90.py", "device.sm90.tiles", "device.old.tiles", "there is no flashgen.runtime.device.old"),
        ("__init__.py", "runtime.attention_operator", "runtime.old_operator", "flashgen.runtime has no 'old_operator'"),
        ("backward_kv_wide_sm90.py", "runtime.gluon", "runtime.old_gluon", "there is no flashgen.runtime.old_gluon"),
    ],
)
def test_a_package_that_asks_for_what_is_no_more(file: str, now: str, then: str, missing: str, tmp_path: Path) -> None:
    package = tmp_path / "generated" / "causal"
    shutil.copytree(GALLERY / "causal", package)
    text = (package / file).read_text("utf-8")
    assert now in text
    (package / file).write_text(text.replace(now, then), "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", "from generated import causal"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stderr.strip().splitlines()[-1] == (
        f"ImportError: {missing}: {package / file} was made by another version of flashgen; make its package anew by: "
        "flashgen build variants/causal.yaml"
    )


def test_others_are_told_what_python_says() -> None:
    assert not hasattr(runtime, "old_operator")
    with pytest.raises(AttributeError, match=r"module 'flashgen.runtime.device.packed' has no attribute 'row_of_old'"):
        importlib.import_module("flashgen.runtime.device.packed").row_of_old  # noqa: B018
    with pytest.raises(ImportError, match=r"cannot import name 'row_of_old' from 'flashgen.runtime.device.packed'"):
        exec("from flashgen.runtime.device.packed import row_of_old", {"__name__": "mine"})  # noqa: S102
    assert importlib.util.find_spec("flashgen.runtime.device.old") is None
