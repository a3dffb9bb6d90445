"""From the name of a spec to its file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashgen.errors import EnvironmentProblem, UsageError
from flashgen.gallery import gallery, resolve
from flashgen.spec import load


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "variants").mkdir()
    for name in ("alibi", "causal"):
        (tmp_path / "variants" / f"{name}.yaml").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_bare_name_stands_for_the_gallery(folder: Path) -> None:
    assert resolve("alibi") == Path("variants/alibi.yaml")


def test_a_path_stands_for_itself_there_or_not(folder: Path) -> None:
    assert resolve("variants/alibi.yaml") == Path("variants/alibi.yaml")
    assert resolve("other/mine.yaml") == Path("other/mine.yaml")
    assert resolve("mine.yml") == Path("mine.yml")


def test_a_file_without_a_suffix_is_found(folder: Path) -> None:
    Path("mine").touch()
    assert resolve("mine") == Path("mine")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("alibbi", "no spec 'alibbi': found neither a file nor variants/alibbi.yaml; did you mean alibi?"),
        ("", "no spec '': found neither a file nor variants/.yaml; the gallery has alibi, causal"),
        ("zzz", "no spec 'zzz': found neither a file nor variants/zzz.yaml; the gallery has alibi, causal"),
    ],
)
def test_an_unknown_name_lists_what_there_is(folder: Path, spec: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        resolve(spec)
    assert str(error.value) == message


def test_what_is_there_and_no_file_is_not_called_missing(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"^'variants' is no file; expected the path of a YAML file$"):
        load(resolve("variants"))
    with pytest.raises(UsageError, match=r"^'/dev/null' is no file; "):
        load(resolve("/dev/null"))


def test_without_a_gallery_the_message_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="the gallery has no spec here"):
        resolve("alibi")


def test_a_name_that_no_file_can_have_is_said(folder: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"^the spec 'm{50}\.\.\.m{25}' cannot be .*: File name too long$"):
        resolve("m" * 300)


@pytest.fixture
def nobody() -> Iterator[None]:
    """Somebody whom permissions stop, as they do not stop root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_gallery_that_cannot_be_searched_is_not_called_empty(folder: Path, request: pytest.FixtureRequest) -> None:
    folder.chmod(0o755)
    (folder / "variants").chmod(0)
    request.getfixturevalue("nobody")
    with pytest.raises(EnvironmentProblem, match=r"^variants/ cannot be searched for specs: Permission denied$"):
        gallery()
    with pytest.raises(EnvironmentProblem, match=r"^the spec 'alibi' cannot be looked for here .*: Permission denied$"):
        resolve("alibi")
