"""What may stand in an output: text that shows all of itself, in the order in which it is written."""

from __future__ import annotations

import unicodedata

# Controls, formats (which reorder or hide text), surrogates, separators of lines and paragraphs.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Formats that scripts and emoji are spelled with: they join letters, and reorder nothing.
_JOINERS = "\u200c\u200d"


def is_printable(text: str) -> bool:
    """Whether the text can stand in an output as it is; tabs and line feeds may be in it."""
    return not any(map(_hidden, text))


def printable(text: str) -> str:
    """The text with an escape such as \\x1b for each character that may not stand in an output."""
    return "".join(_escaped(c) if _hidden(c) else c for c in text)


def on_one_line(text: str) -> str:
    """The printable text of what must stay on one line."""
    return "".join(_escaped(c) if c in "\n\t" else c for c in printable(text))


def foreign_letter(text: str) -> str:
    """The first letter or digit that ASCII does not have, by its code and name: it may look like one that it has."""
    found = next((c for c in text if not c.isascii() and (c.isalpha() or c.isdecimal())), "")
    return f"U+{ord(found):04X}, {unicodedata.name(found, 'a letter without a name')}" if found else ""


def in_short(text: str, most: int) -> str:
    """The text, or the beginning and the end of one that is longer than `most`."""
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-(most // 4) :]}"


def _hidden(character: str) -> bool:
    return unicodedata.category(character) in _HIDDEN and character not in "\n\t" + _JOINERS


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
