"""What an option may be, where it is one of a few: known before what is slow to import, and checked at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flashgen.errors import UsageError

PRESETS = ("quick", "default", "full")
LEVELS = ("quick", "full")


def check_choice(option: str, given: object, choices: Iterable[str]) -> None:
    """UsageError where what was given is none of the choices."""
    choices = tuple(choices)
    if given not in choices:
        raise UsageError(f"{option} {given!r}; expected one of {', '.join(choices)}")


def at_least(least: int) -> Callable[[str], int]:
    """What argparse reads an option by: an integer, no smaller one."""

    def integer(text: str) -> int:
        if int(text) < least:
            raise ValueError(f"{text} is less than {least}")
        return int(text)

    integer.__name__ = f"integer of {least} or more"
    return integer
