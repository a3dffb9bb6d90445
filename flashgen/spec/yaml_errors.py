"""What YAML's own reader complains of, with its place and what would be right of an expression that it cannot read."""

from __future__ import annotations

import re

import yaml

from flashgen.errors import Location, SpecError
from flashgen.spec.places import Lines

# A key, then a value that begins with what means something to YAML.
_SIGNED_VALUE = re.compile(r"""\s*(?:-\s+)?[\w"']+\s*:\s+(?P<sign>[!&*|>%@`-])""")
_QUOTES = "text that begins with {!r} in quotes"
_REMEDIES = {
    "mapping values are not allowed here": "text that has ': ' in it in quotes",
    "expected <block end>, but found '<block mapping start>'": "keys that belong together indented alike",
    "expected <block end>, but found '<scalar>'": "nothing behind a closing quote",
    "found character '\\t' that cannot start any token": "spaces in the place of tabs",
    "could not find expected ':'": "an expression of several lines indented further than its key",
}


def spec_error(error: yaml.MarkedYAMLError, text: str, lines: Lines) -> SpecError:
    """The error of YAML's as one of a spec's."""
    mark = error.problem_mark or error.context_mark
    at = lines.at(mark.index) if mark else Location(lines.file)
    found = ", ".join(part for part in (error.context, error.problem) if part)
    remedy = _remedy(error.problem or "", _line(text, mark.index) if mark else "")
    return SpecError(at, found, "one valid YAML document" + (f", with {remedy}" if remedy else ""))


def _remedy(problem: str, line: str) -> str:
    if signed := _SIGNED_VALUE.match(line):
        return _QUOTES.format(signed["sign"])
    if problem.startswith("expected ',' or") and "<stream end>" not in problem:
        return "an expression between braces or brackets in quotes"
    return _REMEDIES.get(problem, "")


def _line(text: str, index: int) -> str:
    """The line of a text that has the character at an index."""
    return text[text.rfind("\n", 0, index) + 1 :].split("\n", 1)[0]
