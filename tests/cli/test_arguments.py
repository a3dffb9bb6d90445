"""From what a user types to specs and problem sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashgen.cli.shapes import chosen_dtypes, chosen_shapes, parse_shape
from flashgen.cli.specs import resolve
from flashgen.errors import UsageError
from flashgen.spec import load
from flashgen.spec.variant import TuneShape


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


def test_a_shape_fills_in_what_is_left_out() -> None:
    assert parse_shape("batch=2, heads=16,q_len=128") == TuneShape(2, 16, 16, 128, 128)
    assert parse_shape("batch=1,heads=8,kv_heads=2,q_len=1,kv_len=64,head_dim=40,v_head_dim=80") == TuneShape(
        1, 8, 2, 1, 64, 40, 80
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found ''; expected NAME=NUMBER"),
        ("batch=2,head=16,q_len=1", "found 'head=16'; expected NAME=NUMBER"),
        ("batch=2,heads=-1,q_len=1", "found 'heads=-1'; expected NAME=NUMBER"),
        ("batch=0,heads=1,q_len=1", "found 'batch=0'; expected NAME=NUMBER"),
        ("batch=1.5,heads=1,q_len=1", "found 'batch=1.5'; expected NAME=NUMBER"),
        ("batch=2", "heads, q_len not found; expected batch, heads, q_len at least"),
        ("batch=2,heads=16,kv_heads=3,q_len=1", "heads must be a multiple of kv_heads"),
    ],
)
def test_a_wrong_shape_says_what_is_expected(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_shape(text)
    assert message in str(error.value)


def test_what_is_not_asked_for_is_left_to_the_spec() -> None:
    assert (chosen_shapes(None), chosen_dtypes(None)) == (None, None)
    assert chosen_shapes(["batch=1,heads=2,q_len=8"]) == (TuneShape(1, 2, 2, 8, 8),)
    assert chosen_dtypes(["float32"]) == ("float32",)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(UsageError, match="--dtype 'float64'; expected one of float16, bfloat16, float32"):
        chosen_dtypes(["float64"])
