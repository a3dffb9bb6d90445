"""Where a function's source ends, without Python's tokenizer, which is slow before Python 3.12.

Triton asks `inspect` for the source of each kernel when its module is loaded, and of each that it interprets twice
more: half of the time that loading a generated package takes.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence

BY_TOKENS = inspect.getblock
# What a line outside of all functions begins with where the one before it goes on.
_CLOSING = (")", "]", "}")


def install() -> None:
    """Have `inspect` find the ends of functions so."""
    if sys.version_info < (3, 12):
        inspect.getblock = block


def block(lines: Sequence[str]) -> Sequence[str]:
    """The lines of the function that `lines` begin with."""
    return by_indents(lines) or BY_TOKENS(lines)


def by_indents(lines: Sequence[str]) -> Sequence[str] | None:
    """The same; None where it takes more than a look at what each line begins with."""
    head = next((place for place, line in enumerate(lines) if line.startswith("def ")), None)
    if head is None or not lines[0].startswith(("@", "def ")):
        return None
    after = range(head + 1, len(lines))
    stop = next((place for place in after if _begins_another(lines[place])), len(lines))
    while not lines[stop - 1].strip() or lines[stop - 1].startswith("#"):
        stop -= 1
    return None if _is_open(lines[:stop]) else lines[:stop]


def _begins_another(line: str) -> bool:
    """Whether a line is of what comes after a function, if it is not within a string or brackets of it."""
    return bool(line.strip()) and not line[0].isspace() and not line.startswith(("#", *_CLOSING))


def _is_open(lines: Sequence[str]) -> bool:
    """Whether what ends here may go on: a string of several lines, brackets, or a line that says so."""
    text = "".join(lines)
    return "'''" in text or text.count('"""') % 2 == 1 or lines[-1].rstrip().endswith(("\\", ",", "(", "[", "{"))
