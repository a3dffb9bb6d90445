"""The layout of generated files: ruff's, heads and calls of functions in rows, and lines that ruff leaves too long."""

from __future__ import annotations

import ast
import re
import subprocess
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from flashgen.codegen.headers import in_rows, joined, of_several_lines
from flashgen.errors import EnvironmentProblem
from flashgen.files import reason
from flashgen.processes import environment, program

WIDTH = 120
# A file by which it is seen whether ruff formats at all; no name of a kernel's.
SAMPLE = "_sample.py"


def formatted(files: Mapping[str, str]) -> dict[str, str]:
    """Python sources by their names as ruff lays them out, but for heads of functions, which keep their rows, and calls
    of many short arguments, which have some.

    Prose and the lines that ruff must not touch have at most 120 columns too; a command stays a line, to be copied.
    """
    return dict(_formatted((*files.items(),)))


# Who builds a variant, and then compiles or proves it in the same process, renders it each time.
@lru_cache(maxsize=32)
def _formatted(files: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    texts = _by_ruff(dict(files))
    return tuple((name, "\n".join(map(wrapped, in_rows(source, texts[name], WIDTH)))) for name, source in files)


def _by_ruff(files: Mapping[str, str]) -> dict[str, str]:
    """All at once, in a folder of their own: a process for each file would take most of the time."""
    texts = {**files, SAMPLE: "x=1\n"}
    try:
        with TemporaryDirectory(prefix="flashgen-layout-") as folder:
            for name, text in texts.items():
                Path(folder, name).write_text(text, encoding="utf-8")
            said = _run_ruff(folder, texts)
            found = {name: Path(folder, name).read_text(encoding="utf-8") for name in texts}
    except OSError as error:
        raise EnvironmentProblem(f"the generated files could not be formatted: {reason(error)}") from error
    if found.pop(SAMPLE) != "x = 1\n":
        raise EnvironmentProblem(
            f"ruff left the generated files in {folder} unformatted: {said or 'it does not say why'}"
        )
    return found


def _run_ruff(folder: str, names: Iterable[str]) -> str:
    """Format these files of a folder; what ruff has to say.

    Files that are named are formatted wherever the folder lies: ruff passes over folders such as `build`, and what a
    repository around them ignores.
    """
    options = ["--isolated", "--no-cache", "--no-respect-gitignore", "--line-length", str(WIDTH)]
    line = [*program("ruff"), "format", *options, *names]
    done = subprocess.run(line, cwd=folder, env=environment(), capture_output=True, encoding="utf-8", check=False)
    if done.returncode != 0:
        said = done.stderr.strip() or f"it ended with status {done.returncode} and does not say why"
        raise EnvironmentProblem(f"ruff could not format the generated files: {said}")
    return done.stderr.strip()


def wrapped(source: str) -> str:
    """The source with long paragraphs of prose filled, and long rows of arguments in several lines."""
    lines = source.split("\n")
    if all(len(line) <= WIDTH for line in lines):
        return source
    strings, docstrings = _strings(source)
    kept: list[str] = []
    place = 0
    while place < len(lines):
        count = 1
        if len(lines[place]) <= WIDTH or place in strings - docstrings or _is_command(lines, place):
            kept.append(lines[place])
        elif place in docstrings or lines[place].lstrip().startswith("# "):
            count = _paragraph(lines[place:])
            kept += _filled(lines[place : place + count])
        else:
            kept += _rows(lines[place])
        place += count
    return "\n".join(kept)


def _strings(source: str) -> tuple[set[int], set[int]]:
    """The numbers, from 0, of the lines of strings that have several, and of those of docstrings."""
    strings: set[int] = set()
    docstrings: set[int] = set()
    # Each line of any other string has quotes, or goes on after a backslash: as it is it stays.
    if '"""' not in source and "'''" not in source:
        return strings, docstrings
    for node in of_several_lines(ast.parse(source)):
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and node.end_lineno != node.lineno:
            strings |= {*range(node.lineno - 1, node.end_lineno or 0)}
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node, False) is not None:
            docstrings |= {*range(node.body[0].lineno - 1, node.body[0].end_lineno or 0)}
    return strings, docstrings


def _lead(line: str) -> str:
    """What each line of a paragraph begins with: its indent and, in a comment, the sign."""
    found = re.match(r" *(# )?", line)
    return found[0] if found else ""


def _paragraph(lines: Sequence[str]) -> int:
    """How many lines go on with the first one's sentence: none after a full stop or the end of a docstring."""
    for number, line in enumerate(lines):
        following = lines[number + 1 : number + 2]
        if line.endswith(('."""', ".", '"""')) or not following or _lead(following[0]) != _lead(lines[0]):
            return number + 1
        if not following[0].strip(' #"'):
            return number + 1
    return len(lines)


def _is_command(lines: Sequence[str], place: int) -> bool:
    """Whether the line is a call of the command, with nothing above and below it."""
    around = (*lines[place - 1 : place], *lines[place + 1 : place + 2])
    return lines[place].lstrip().startswith("flashgen ") and not any(map(str.strip, around))


def _filled(lines: Sequence[str]) -> list[str]:
    lead = _lead(lines[0])
    text = " ".join(line.removeprefix(lead) for line in lines)
    return textwrap.wrap(
        text, WIDTH, initial_indent=lead, subsequent_indent=lead, break_long_words=False, break_on_hyphens=False,
        expand_tabs=False, replace_whitespace=False,
    )  # fmt: skip


def _rows(line: str) -> list[str]:
    """A line of arguments in several; as it is where there is a string or nothing to part."""
    if not line.endswith(",") or re.search("[\"'#]", line):
        return [line]
    indent = _lead(line)
    role = re.fullmatch(r" *(\(\w+, \()(.+)(\)\),)", line)
    text = f"{role[2]}," if role else line.strip()
    arguments = [*_arguments(text)]
    if "".join(arguments) != text:
        # It closes brackets that other lines open.
        return [line]
    items = [argument.strip() for argument in arguments]
    if role:
        return [indent + role[1], *joined(items, indent + "    ", WIDTH), indent + role[3]]
    return [*joined(items, indent, WIDTH)]


def _arguments(text: str) -> Iterator[str]:
    """The parts of a text up to each comma that is in no bracket."""
    depth = start = 0
    for place, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            yield text[start : place + 2]
            start = place + 2
