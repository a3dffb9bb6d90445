"""What the README shows is true: its specs load, its error is the one that appears, its commands and links exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flashgen.cli.app import app
from flashgen.errors import SpecError
from flashgen.spec import load

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_every_spec_loads(tmp_path: Path) -> None:
    path, names = tmp_path / "shown.yaml", []
    for text in blocks("yaml"):
        path.write_text(text)
        names.append(load(path).name)
    # Only the first is of the gallery, whose package the other must not replace.
    assert names == ["alibi", "mine"]


def test_the_error_shown_is_the_one_that_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("name: mine\nparams: {W: 8}\nlet: {d: q - k}\nmask: (d <= W) & (kv_idx <= q)\n")
    with pytest.raises(SpecError) as error:
        load("mine.yaml")
    assert f"error: {error.value}" in README


def test_the_table_of_commands_is_complete() -> None:
    listed = set(
        re.findall(r"^\| `flashgen (\w+)", (ROOT / "docs/commands.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    commands = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    groups = {str(group.name) for group in app.registered_groups}
    assert listed == commands | groups


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.stem
)
def test_every_file_that_a_page_links_to_exists(page: Path) -> None:
    links = re.findall(r"\]\(((?!http)[^)#]+)", page.read_text(encoding="utf-8"))
    assert links or page.stem != "README"
    assert [link for link in links if not (page.parent / link).exists()] == []
