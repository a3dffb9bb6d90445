"""What ruff leaves too long is wrapped, and nothing else changes."""

from __future__ import annotations

import ast
import tempfile
from pathlib import Path

import pytest

from flashgen.codegen import layout
from flashgen.codegen.layout import WIDTH, formatted, wrapped
from flashgen.errors import EnvironmentProblem

GALLERY = sorted((Path(__file__).parents[2] / "generated").glob("*/*.py"))
NAMES = ", ".join(f"argument_{number}" for number in range(12))


def meaning(source: str) -> str:
    """The syntax tree, prose by its words."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = " ".join(node.value.split())
    return ast.dump(tree)


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_generated_lines_fit_but_for_strings(path: Path) -> None:
    long = [line.strip() for line in path.read_text().splitlines() if len(line) > WIDTH]
    assert all(line.startswith('"') for line in long)


def test_arguments_that_ruff_must_not_touch_get_lines_of_their_own() -> None:
    source = f"""f = g = h = {", ".join(["0"] * 12)}
# fmt: off
f([
    (g, (0, {NAMES})),
    (h, ({NAMES}, [{NAMES}])),
    {NAMES},
])
# fmt: on
"""
    for name in NAMES.split(", "):
        source = f"{name} = 0\n{source}"
    text = formatted({"m.py": source})["m.py"]
    assert max(map(len, text.splitlines())) <= WIDTH + len(f"[{NAMES}]")
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(source))
    assert "    (g, (\n        0, argument_0, argument_1," in text and ",\n    )),\n" in text
    assert wrapped(text) == text


def laid_out(source: str) -> str:
    return formatted({"m.py": source})["m.py"]


def test_lines_that_close_brackets_of_others_stay() -> None:
    deep = "x"
    for number in range(70):
        deep = f"function_{number % 7}(first_of_them + {deep}.to(int64), second_of_them{', 3' * (number % 8)})"
    source = f"y = {deep}\n"
    assert meaning(formatted({"a.py": source})["a.py"]) == meaning(source)


def test_arguments_share_lines_as_in_the_source() -> None:
    source = """
@jit(do_not_specialize=["a", "b", "c", "d"])
def f(
    q_ptr, k_ptr,
    stride_q, stride_k, *, head_dim=64,
):
    return q_ptr, k_ptr, stride_q, stride_k, head_dim
"""
    # It has room in one line, and there is no trailing comma that says otherwise.
    assert "\ndef f(q_ptr, k_ptr, stride_q, stride_k, *, head_dim=64):\n" in laid_out(source)
    long = source.replace("stride_q", "stride_of_the_first_dimension_of_the_queries").replace(
        "k_ptr", "pointer_to_all_of_the_keys_of_a_sequence"
    )
    many = ", ".join(f'"name_of_an_argument_{i}"' for i in range(6))
    text = laid_out(long.replace('"a", "b", "c", "d"', many))
    assert (
        """def f(
    q_ptr, pointer_to_all_of_the_keys_of_a_sequence,
    stride_of_the_first_dimension_of_the_queries, stride_k, *, head_dim=64,
):
"""
        in text
    )
    assert "@jit(do_not_specialize=[\n" in text and "\n])\ndef f(" in text
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(long.replace('"a", "b", "c", "d"', many)))


def test_a_call_of_many_short_arguments_has_rows() -> None:
    names = ", ".join(f"name_of_argument_{number}" for number in range(9))
    text = laid_out(f"found = f(g(0), {names})\n")
    assert text.startswith("found = f(\n    g(0), name_of_argument_0, name_of_argument_1,") and text.endswith(",\n)\n")
    assert len(text.splitlines()) == 4 and max(map(len, text.splitlines())) <= WIDTH
    assert formatted({"m.py": text})["m.py"] == text


def test_arguments_of_a_call_that_are_long_or_few_have_lines_of_their_own() -> None:
    long = ", ".join(f"the_name_of_an_argument + {number}" for number in range(9))
    few = ", ".join(f"a_long_name_of_a_single_argument_{number}" for number in range(4))
    for arguments in (long, few):
        text = laid_out(f"found = f({arguments})\n")
        assert len(text.splitlines()) == arguments.count(",") + 3


@pytest.mark.parametrize("text", ["def f():\n    return 1\n", "def f(x): ...\n", "def f(x):  # why\n    return x\n"])
def test_a_head_of_one_line_stays(text: str) -> None:
    assert laid_out(text) == text


def test_prose_that_looks_like_a_head_is_none() -> None:
    head = f"def f(\n    {NAMES},\n    last,\n):\n"
    text = laid_out(f'"""Prose.\n\ndef f(a, b):\n"""\n\n\n{head}    return last\n')
    assert text.startswith('"""Prose.\n\ndef f(a, b):\n"""\n\n\ndef f(\n    argument_0, argument_1,')
    assert text.endswith(",\n    last,\n):\n    return last\n")


@pytest.mark.parametrize("text", ["", "# A comment alone.\n"])
def test_a_file_without_statements_stays(text: str) -> None:
    assert laid_out(text) == text


def test_a_row_that_is_too_long_goes_on_in_the_next() -> None:
    names = ", ".join(f"argument_number_{i}: int = {i}" for i in range(12))
    text = laid_out(f"def f({names}) -> None:\n    # Nothing.\n    return\n")
    head = text[: text.index("# Nothing")].rstrip().split("\n")
    assert head[0] == "def f(" and head[-1] == ") -> None:"
    assert 2 <= len(head[1:-1]) <= 4 and max(map(len, head)) <= WIDTH


def test_prose_is_filled_to_the_end_of_its_paragraph() -> None:
    words = " ".join(["word"] * 30)
    source = f'''def f():
    """A title.

    {words}
    and more.
    The end.
    """
    # {words}
    # and more
    # and more.
    # Another one.
    x = "{words}"
    return """
{words}
# {words}
{words},
"""
'''
    text = wrapped(source)
    assert meaning(text) == meaning(source)
    lines = text.split("\n")
    assert [line for line in lines if len(line) > WIDTH] == [f'    x = "{words}"', words, f"# {words}", f"{words},"]
    assert "    The end." in lines and "    # Another one." in lines
    rest = " ".join(["word"] * 7)
    assert {f"    {rest} and more.", f"    # {rest} and more and more."} <= set(lines)
    assert wrapped(text) == text


def test_a_command_stays_a_line_that_can_be_copied() -> None:
    path = f"'a folder/{'x' * WIDTH}/mine  too.yaml'"
    prose = f"flashgen {' '.join(['word'] * 30)}"
    source = f'''"""A title.

{prose}
and more.

Generated from {path} by

    flashgen build {path}

The end.
"""
'''
    text = laid_out(source)
    assert meaning(text) == meaning(source)
    lines = text.split("\n")
    assert f"    flashgen build {path}" in lines and prose not in lines
    assert laid_out(text) == text


def test_who_changes_what_it_got_changes_it_for_nobody_else() -> None:
    files = {"a.py": "a = 1\n", "b.py": "b = 2\n"}
    first = formatted(files)
    first["a.py"] = ""
    assert formatted(files) == files
    assert formatted(dict(reversed(files.items()))) == files


@pytest.mark.parametrize("below", ["", "build", "venv/lib/site-packages", "node_modules", ".git/dist"])
def test_files_are_laid_out_wherever_temporary_folders_lie(
    below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    for name in (".gitignore", ".ignore"):
        (tmp_path / name).write_text("*\n")
    (tmp_path / below).mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / below))
    assert laid_out(f"f(  {below!r})\n") == f'f("{below}")\n'


def test_the_working_folder_need_not_be_there_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert laid_out("f(  'gone')\n") == 'f("gone")\n'


def test_files_that_are_not_laid_out_are_a_problem_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "program", lambda name: ["echo"])
    with pytest.raises(EnvironmentProblem, match=r"^ruff left the generated files in \S+ unformatted: "):
        laid_out("f(  'left')\n")


def test_a_formatter_that_ends_without_a_word_is_told_by_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "program", lambda name: ["sh", "-c", "kill -9 $$"])
    with pytest.raises(EnvironmentProblem, match=r": it ended with status -9 and does not say why$"):
        laid_out("f(  'killed')\n")
