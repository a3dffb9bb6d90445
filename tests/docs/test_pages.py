"""The pages are true: their specs load, their commands parse, their Python compiles and, where it can, runs."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from flashgen.cli.app import app
from flashgen.lang.vocabulary import FUNCTIONS
from flashgen.spec import load

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


def blocks(language: str) -> list[object]:
    """Every fenced block of a language, by its page and number."""
    found = []
    for page in PAGES:
        texts = [textwrap.dedent(m[3]) for m in BLOCK.finditer(page.read_text(encoding="utf-8")) if m[2] == language]
        name = page.relative_to(ROOT).as_posix()
        found += [pytest.param(text, id=f"{name}:{number}") for number, text in enumerate(texts)]
    return found


def commands() -> list[object]:
    """Every line of a shell block that calls flashgen, or one of its modules."""
    found = []
    for block in blocks("bash"):
        (text,) = block.values
        for line in text.splitlines():
            for part in line.split("&&"):
                words = shlex.split(part, comments=True)
                if words[:1] == ["flashgen"] or words[:3] == ["python", "-m", "flashgen"]:
                    found.append(pytest.param(words, id=f"{block.id} {part.strip()}"))
    return found


@pytest.mark.parametrize("text", blocks("yaml"))
def test_every_spec_loads(text: str, tmp_path: Path) -> None:
    """Where a page shows some keys of a spec alone, they get a name."""
    path = tmp_path / "shown.yaml"
    keys = yaml.safe_load(text)
    path.write_text(text if "name" in keys else f"name: shown\n{text}")
    assert load(path).name == keys.get("name", "shown")


@pytest.mark.parametrize("words", commands())
def test_every_command_and_option_exists(words: list[str]) -> None:
    command = [word for word in words[1:] if re.fullmatch(r"[a-z]+", word)]
    depth = 2 if command[0] == "cache" else 1
    ended = CliRunner().invoke(app, [*command[:depth], "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert ended.exit_code == 0, ended.output
    plain = re.sub(r"\x1b\[[0-9;]*m", "", ended.output)
    assert [word for word in words if word.startswith("--") and word.split("=")[0] not in plain] == []


@pytest.mark.parametrize("text", blocks("bash"))
def test_every_script_and_module_that_is_run_exists(text: str) -> None:
    for script in re.findall(r"python (\w+(?:/\w+)+\.py)", text):
        assert (ROOT / script).is_file(), script
    for module in re.findall(r"python -m (flashgen[\w.]*)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


@pytest.mark.parametrize("text", blocks("python"))
def test_every_python_block_parses(text: str) -> None:
    ast.parse(text)


def test_the_first_example_runs_without_a_gpu(tmp_path: Path) -> None:
    """Start here, from its file to the gradient, on CPU tensors in the interpreter."""
    page = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    found = {language: text for _, language, text in BLOCK.findall(page) if language in ("yaml", "python")}
    (tmp_path / "mine.yaml").write_text(found["yaml"])
    script = found["python"].replace('"cuda"', '"cpu"').replace("2048", "80").replace("1, 8,", "1, 2,")
    assert script != found["python"]
    render = "import flashgen\nflashgen.build('mine.yaml', verify=False, tune=False, compile=False)\n"
    (tmp_path / "example.py").write_text(f"import os\nos.environ['TRITON_INTERPRET'] = '1'\n{render}{script}")
    ended = subprocess.run([sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr
    assert float(re.search(r"tensor\(([\d.e-]+)", ended.stdout)[1]) < 0.05


def test_every_step_of_the_tutorial_has_its_pictures() -> None:
    page = (ROOT / "docs/writing.md").read_text(encoding="utf-8")
    for name in re.findall(r"^name: (\w+)", page, re.MULTILINE):
        shown = re.findall(rf"\((pictures/{name}_\w+)\.png\)", page)
        assert shown, name
        for picture in shown:
            assert all((ROOT / "docs" / f"{picture}{suffix}.png").is_file() for suffix in ("", "_dark"))


def test_the_reference_has_every_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "make")
    import reference

    assert set(reference.FUNCTIONS) == set(FUNCTIONS)


def test_links_of_the_repository_become_links_of_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "make")
    import links

    text = "[a](../variants) [b](../examples/gpt.py) [c](tuning.md#x) ![d](masks.png) [e](https://a.b)"
    assert links.mended(text, "docs", "training.md") == (
        "[a](gallery/index.md) [b](source/examples/gpt.py.md) [c](tuning.md#x) ![d](masks.png) [e](https://a.b)"
    )
    assert links.mended("[a](docs/how.md)", ".", "notes/x.md") == "[a](../how.md)"
