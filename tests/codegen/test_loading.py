"""Packages are imported as they are on disk now."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flashgen.codegen import generate, load_module
from flashgen.errors import UsageError
from flashgen.files import write_if_changed
from flashgen.spec import load

CAUSAL = load({"name": "mine", "causal": True})
WINDOW = load({"name": "mine", "window": {"left": 5, "right": 0}})


@pytest.mark.parametrize("file", ["__init__.py", "kernel.py"])
def test_a_package_is_imported_as_it_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "mine"
    write_if_changed(path / "__init__.py", "from .kernel import ANSWER\n")
    for number in range(5):
        write_if_changed(path / file, f"ANSWER = {number}\n")
        # The same second and the same length: bytecode of the earlier text would pass for this one's.
        assert int(load_module(path).ANSWER) == number


def test_a_file_is_a_module_too(tmp_path: Path) -> None:
    write_if_changed(tmp_path / "alone.py", "ANSWER = 3\n")
    assert load_module(tmp_path / "alone.py").ANSWER == 3


def test_packages_imported_apart_stay_apart(tmp_path: Path) -> None:
    first = load_module(generate(CAUSAL, tmp_path / "one"))
    second = load_module(generate(WINDOW, tmp_path / "two"))
    assert first.__name__ == second.__name__ == "flashgen_generated.mine"
    assert first.IDENTITY.spec != second.IDENTITY.spec
    assert first._forward is not second._forward
    assert load_module(Path(str(first.__file__))).IDENTITY == first.IDENTITY


def test_every_name_of_a_package_s_kernels_is_in_its_namespace(tmp_path: Path) -> None:
    module = load_module(generate(CAUSAL, tmp_path))
    assert module._forward.fn.__module__ == "flashgen_generated.mine.forward"


def test_what_is_no_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^no generated module at .*none; expected one made by `flashgen build`$"):
        load_module(tmp_path / "none")
    (tmp_path / "text.txt").write_text("")
    with pytest.raises(UsageError, match=r"^no generated module at .*text\.txt"):
        load_module(tmp_path / "text.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"^no generated module at .*empty"):
        load_module(tmp_path / "empty")
