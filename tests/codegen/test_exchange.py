"""Packages in their proofs beside other builds of the same name, and interrupted wherever that may be."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from packages import files_of

from flashgen.codegen import generate, on_trial, render
from flashgen.errors import UsageError, VerificationFailed
from flashgen.spec import load

PLAIN = {"name": "mine", "causal": True, "head_dim": 16, "dtype": "float32"}
OLD, MINE, OTHER = (load({**PLAIN, **more}) for more in ({}, {"softcap": 10.0}, {"softcap": 20.0}))
ENDS = [VerificationFailed("wrong"), KeyboardInterrupt()]
STAYS = "mine is another build's by now, and stays"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The place of a good package, with records."""
    path = generate(OLD, tmp_path)
    (path / "tuned").mkdir()
    (path / "tuned" / "gpu.json").write_text("{}")
    return path


def fail(error: BaseException) -> None:
    raise error


def entries(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


def said(error: BaseException) -> str:
    return "\n".join((str(error), *getattr(error, "__notes__", ())))


@pytest.mark.parametrize("error", ENDS, ids=repr)
def test_what_another_build_has_proven_meanwhile_stays(path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, on_trial(MINE, path.parent):
        with on_trial(OTHER, path.parent):
            pass
        fail(error)
    assert files_of(path) == render(OTHER) and (path / "tuned" / "gpu.json").exists()
    assert entries(path) == ["mine"]
    assert said(caught.value).endswith(STAYS)


@pytest.mark.parametrize("error", ENDS, ids=repr)
def test_another_builds_package_of_the_same_text_stays_too(path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, on_trial(MINE, path.parent):
        generate(OTHER, path.parent)
        generate(MINE, path.parent)
        fail(error)
    assert files_of(path) == render(MINE)
    assert entries(path) == ["mine"]
    assert said(caught.value).endswith(STAYS)


@pytest.mark.parametrize("first", ENDS, ids=repr)
@pytest.mark.parametrize("then", ENDS, ids=repr)
def test_of_two_builds_that_fail_neither_brings_back_what_the_other_did_not_prove(
    path: Path, first: BaseException, then: BaseException
) -> None:
    with ExitStack() as last:
        last.enter_context(pytest.raises(type(then)))
        other = ExitStack()
        with pytest.raises(type(first)), on_trial(MINE, path.parent):
            other.enter_context(on_trial(OTHER, path.parent))
            fail(first)
        assert files_of(path) == render(OTHER)
        assert files_of(path.with_name("mine.failed")) == render(MINE)
        with other:
            fail(then)
    assert files_of(path) == render(OLD) and (path / "tuned" / "gpu.json").exists()
    assert files_of(path.with_name("mine.failed")) == render(OTHER)
    assert entries(path) == ["mine", "mine.failed"]


@contextmanager
def interrupted(monkeypatch: pytest.MonkeyPatch, number: int, is_done: bool) -> Iterator[None]:
    """Ctrl-C before, or after, the rename of this number."""
    rename, calls = os.rename, iter(range(100))

    def stopped(*given: str) -> None:
        is_this = next(calls) == number
        if is_this and not is_done:
            raise KeyboardInterrupt
        rename(*given)
        if is_this:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", stopped)
        yield


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("number", [0, 1])
def test_the_old_package_comes_back_when_its_replacement_is_interrupted(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_done: bool
) -> None:
    with pytest.raises(KeyboardInterrupt), interrupted(monkeypatch, number, is_done):
        generate(MINE, path.parent)
    assert files_of(path) == render(OLD) and (path / "tuned" / "gpu.json").exists()
    assert entries(path) == ["mine"]


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("error", ENDS, ids=repr)
def test_the_old_package_comes_back_when_setting_aside_is_interrupted(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, number: int, is_done: bool
) -> None:
    with pytest.raises(VerificationFailed), on_trial(OTHER, path.parent):
        fail(VerificationFailed("so that there is one to replace"))
    with (
        pytest.raises((type(error), KeyboardInterrupt)),
        interrupted(monkeypatch, number, is_done),
        on_trial(MINE, path.parent),
    ):
        fail(error)
    assert files_of(path) == render(OLD) and (path / "tuned" / "gpu.json").exists()
    assert {*entries(path)} <= {"mine", "mine.failed"}


@pytest.mark.parametrize("error", ENDS, ids=repr)
def test_the_old_package_is_back_before_anything_is_deleted(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path.with_name("mine.failed").mkdir()
    with pytest.raises(KeyboardInterrupt), on_trial(MINE, path.parent):
        monkeypatch.setattr(shutil, "rmtree", lambda *given, **named: fail(KeyboardInterrupt()))
        fail(error)
    assert files_of(path) == render(OLD) and (path / "tuned" / "gpu.json").exists()
    assert files_of(path.with_name("mine.failed")) == render(MINE)


def test_records_outlive_an_interruption_after_a_failure(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing else stood there they lie in the package that failed alone."""
    with pytest.raises(KeyboardInterrupt), interrupted(monkeypatch, 0, True), on_trial(OLD, path.parent):
        fail(VerificationFailed("wrong"))
    assert (path.with_name("mine.failed") / "tuned" / "gpu.json").exists()


PLACES: dict[str, Callable[[Path], object]] = {
    "file": Path.touch,
    "link": lambda place: place.symlink_to("elsewhere"),
    "link to a folder": lambda place: place.symlink_to(place.parent),
    "folder": lambda place: (place.mkdir(), (place / "thesis.tex").touch()),
}


@pytest.mark.parametrize("what", PLACES)
def test_what_stands_where_a_failed_package_would_go_is_refused_at_once(path: Path, what: str) -> None:
    PLACES[what](path.with_name("mine.failed"))
    with (
        pytest.raises(UsageError, match=r"mine\.failed is (no place|not of flashgen's making)"),
        on_trial(MINE, path.parent),
    ):
        fail(AssertionError("nothing is to be proven"))
    assert files_of(path) == render(OLD)
    assert entries(path) == ["mine", "mine.failed"]


@pytest.mark.parametrize("what", PLACES)
def test_what_comes_there_later_costs_neither_the_verdict_nor_the_old_package(path: Path, what: str) -> None:
    with pytest.raises(VerificationFailed, match="wrong") as caught, on_trial(MINE, path.parent):
        PLACES[what](path.with_name("mine.failed"))
        fail(VerificationFailed("wrong"))
    assert files_of(path) == render(OLD) and "mine is what it was before" in str(caught.value)
    assert files_of(path.with_name("mine.failed")) == render(MINE)


def test_a_package_that_somebody_deletes_while_it_is_proven_costs_no_verdict(path: Path) -> None:
    with pytest.raises(VerificationFailed, match=r"wrong\n.*mine is what it was before"), on_trial(MINE, path.parent):
        shutil.rmtree(path)
        fail(VerificationFailed("wrong"))
    assert files_of(path) == render(OLD)


def test_where_nothing_can_come_back_nothing_is_deleted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with pytest.raises(VerificationFailed, match="wrong") as caught, on_trial(MINE, path.parent):
        monkeypatch.setattr(os, "rename", refused)
        fail(VerificationFailed("wrong"))
    (beside,) = path.parent.glob(".flashgen-*")
    assert files_of(beside / "mine") == render(OLD) and (beside / "mine" / "tuned" / "gpu.json").exists()
    assert "mine could not be set aside: Permission denied" in said(caught.value)
    assert said(caught.value).endswith(f"mine could not be put back: Permission denied; see {beside}")


KILLED = """
import os, signal, sys
from pathlib import Path
from flashgen.codegen import exchange, on_trial
from flashgen.spec import load

moments = iter(range(1, 100))
rename = os.rename

def counted(*places):
    if next(moments) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    rename(*places)

os.rename = counted
with on_trial(load({"name": "mine", "softcap": 10.0}), Path(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_what_a_killed_build_has_left_goes_with_the_next_one(path: Path, renames: int) -> None:
    """Killed before the old package is out of the way, before the new one is in its place, or in its proof."""
    (path / "notes.txt").touch()
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path.parent), str(renames)], check=False)
    assert killed.returncode == -signal.SIGKILL and len(entries(path)) == (1 if renames == 2 else 2)
    with pytest.raises(VerificationFailed), on_trial(OTHER, path.parent):
        fail(VerificationFailed("wrong"))
    assert entries(path) == ["mine", "mine.failed"]
    assert (path / "tuned" / "gpu.json").exists() and (path / "notes.txt").exists()
    generate(OTHER, path.parent)
    assert entries(path) == ["mine", "mine.failed"] and files_of(path) == render(OTHER)
