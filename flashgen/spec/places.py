"""Where the characters of a YAML file stand, and those of a scalar, whatever its style and its escapes."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from yaml.scanner import Scanner

from flashgen.errors import Location

# An anchor, then a quote or the header of a block; what comes before the content.
_HEAD = re.compile(r"(?:&\S+(?:\s|(?<=\s)#[^\r\n]*)*)?(?P<style>['\"]|[|>][^\r\n]*)?")
_UNITS = {
    "'": re.compile("''|.", re.DOTALL),
    '"': re.compile(r"\\(?:x..|u.{4}|U.{8}|(?:\r\n|\r|\n)[ \t]*|.)|.", re.DOTALL),
}
_CODED = frozenset("xuU")


class Lines:
    """The lines of a file, as editors count them."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self._starts = [0, *(found.end() for found in re.finditer(r"\r\n|\r|\n", text))]

    def at(self, index: int) -> Location:
        """The place of the character at an index of the text."""
        line = bisect_right(self._starts, index)
        return Location(self.file, line, index - self._starts[line - 1] + 1)


@dataclass(frozen=True)
class Scalar:
    """What a scalar says, with the line breaks and the indentation of the file, and where each character stands."""

    text: str
    places: tuple[int, ...]
    lines: Lines

    def at(self, index: int) -> Location:
        """The place of a character of `text`, or of what comes after the last."""
        return self.lines.at(self.places[index])


def scalar_at(text: str, start: int, end: int, lines: Lines) -> Scalar:
    """The scalar between two indices of a file's text, blanks around it left out."""
    head = _HEAD.match(text, start, end)
    assert head is not None
    style = head["style"] or ""
    content = _characters(text, head.end(), end - (style in _UNITS), style)
    pairs = [*content, ("", end - (style in _UNITS))]
    said = "".join(character for character, _ in pairs)
    first = len(said) - len(said.lstrip())
    return Scalar(said.strip(), tuple(place for _, place in pairs[first:]), lines)


def _characters(text: str, start: int, end: int, style: str) -> Iterator[tuple[str, int]]:
    if style not in _UNITS:
        yield from zip(text[start:end], range(start, end), strict=True)
        return
    for unit in _UNITS[style].finditer(text, start, end):
        for character in _said(unit.group()):
            yield character, unit.start()


def _said(unit: str) -> str:
    """What a character of a quoted scalar, or an escape, stands for: nothing, for the break of a continued line."""
    if len(unit) == 1:
        return unit
    code = unit[1]
    if code in _CODED:
        return chr(int(unit[2:], 16))
    return "" if code in "\r\n" else Scanner.ESCAPE_REPLACEMENTS.get(code, code)
