"""Packages on disk: whole or not at all, touched only when they change."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from packages import files_of

from flashgen.codegen import generate, on_trial, render, write_package
from flashgen.errors import EnvironmentProblem, UsageError, VerificationFailed
from flashgen.spec import load

CAUSAL = load({"name": "mine", "causal": True})
WINDOW = load({"name": "mine", "window": {"left": 5, "right": 0}})
# Its mask has a schedule, which is one more file.
DOCUMENT = load(
    {"name": "mine", "inputs": {"doc": {"shape": ["kv_len"], "dtype": "int32"}}, "mask": "doc[k] == doc[q]"}
)


def states(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()}


def test_a_package_is_written_under_its_name_in_a_new_folder(tmp_path: Path) -> None:
    path = generate(CAUSAL, tmp_path / "a" / "b")
    assert path == tmp_path / "a" / "b" / "mine"
    assert files_of(path) == render(CAUSAL)
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o666 & ~_umask()}
    assert path.stat().st_mode & 0o777 == 0o777 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_unchanged_files_are_not_touched(tmp_path: Path) -> None:
    path = generate(CAUSAL, tmp_path)
    before = states(path)
    assert generate(CAUSAL, tmp_path) == path
    assert states(path) == before
    (path / "delta.py").write_text("x = 1\n")
    generate(CAUSAL, tmp_path)
    after = states(path)
    assert {name for name in before if before[name] != after[name]} == {"delta.py"}
    assert files_of(path) == render(CAUSAL)


def test_a_changed_package_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    generate(DOCUMENT, tmp_path)
    assert (tmp_path / "mine" / "schedule.py").exists()
    path = generate(WINDOW, tmp_path)
    assert files_of(path) == render(WINDOW)
    assert "schedule.py" not in render(WINDOW)
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine"]


def test_records_and_what_is_not_ours_stay(tmp_path: Path) -> None:
    path = generate(CAUSAL, tmp_path)
    (path / "tuned").mkdir()
    (path / "tuned" / "gpu.json").write_text("{}")
    (path / "notes.md").write_text("mine")
    (path / "helper.py").write_text("x = 1\n")
    (path / "__pycache__").mkdir()
    generate(WINDOW, tmp_path)
    assert (path / "tuned" / "gpu.json").read_text() == "{}"
    assert (path / "notes.md").read_text() == "mine" and (path / "helper.py").exists()
    assert not (path / "__pycache__").exists()


def test_a_module_of_one_file_as_they_once_were_is_replaced(tmp_path: Path) -> None:
    old = tmp_path / "mine.py"
    old.write_text('"""What it is.\n\nGenerated from mine.yaml by\n\n    flashgen build mine.yaml\n"""\n')
    generate(CAUSAL, tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine"]
    old.write_text("x = 'of a person'\n")
    generate(WINDOW, tmp_path)
    assert old.exists()


@pytest.mark.parametrize("what", ["file", "link", "folder"])
def test_what_is_not_of_our_making_is_left_alone(tmp_path: Path, what: str) -> None:
    place = tmp_path / "mine"
    if what == "file":
        place.write_text("mine")
    elif what == "link":
        place.symlink_to(tmp_path / "elsewhere")
        (tmp_path / "elsewhere").mkdir()
    else:
        place.mkdir()
        (place / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match=r"mine is (not of flashgen's making|no folder); expected"):
        generate(CAUSAL, tmp_path)
    assert not (tmp_path / "elsewhere" / "__init__.py").exists()
    assert what != "folder" or (place / "thesis.tex").read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_is_an_environment_problem(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(EnvironmentProblem, match=r"mine cannot be written: Permission denied$"):
            generate(CAUSAL, tmp_path)
    finally:
        tmp_path.chmod(0o755)


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(
        UsageError,
        match=r"mine is no place for a package: \S+out is no folder; expected the path of one, there or not$",
    ):
        generate(CAUSAL, tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("step", ["rename", "fsync", "mkdir"])
@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.EACCES])
def test_a_failure_on_the_way_leaves_the_old_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, problem: int
) -> None:
    path, files = generate(CAUSAL, tmp_path), render(WINDOW)
    original = getattr(os, step)

    def fails(*arguments: object, **named: object) -> None:
        # Renaming fails when the old package is out of the way already.
        if step == "rename" and not str(arguments[0]).endswith(".new"):
            original(*arguments, **named)
            return
        raise OSError(problem, os.strerror(problem))

    monkeypatch.setattr(os, step, fails)
    with pytest.raises(EnvironmentProblem, match=f"cannot be written: {os.strerror(problem)}$"):
        write_package(path, files)
    monkeypatch.undo()
    assert files_of(path) == render(CAUSAL)
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine"]


def fail(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("error", [VerificationFailed("wrong"), KeyboardInterrupt()])
def test_a_package_that_fails_is_set_aside_and_the_old_one_comes_back(tmp_path: Path, error: BaseException) -> None:
    path = generate(CAUSAL, tmp_path)
    (path / "tuned").mkdir()
    with pytest.raises(type(error)), on_trial(WINDOW, tmp_path) as tried:
        assert files_of(tried) == render(WINDOW)
        fail(error)
    assert files_of(path) == render(CAUSAL) and (path / "tuned").is_dir()
    assert files_of(tmp_path / "mine.failed") == render(WINDOW)
    with on_trial(WINDOW, tmp_path):
        pass
    assert files_of(path) == render(WINDOW)
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine"]


def test_records_outlive_a_failure_of_the_package_they_belong_to(tmp_path: Path) -> None:
    path = generate(CAUSAL, tmp_path)
    (path / "tuned").mkdir()
    (path / "tuned" / "gpu.json").write_text("{}")
    with pytest.raises(VerificationFailed, match=r"there is no \S+mine now"), on_trial(CAUSAL, tmp_path):
        fail(VerificationFailed("wrong"))
    assert not path.exists()
    generate(CAUSAL, tmp_path)
    assert (path / "tuned" / "gpu.json").read_text() == "{}"
