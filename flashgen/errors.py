"""Every error that flashgen raises on purpose, in one catalogue.

Each message says what was found, where, and what would be right. `exit_code` is what the command returns:
1 when a check failed, 2 when the input is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.printable import foreign_letter, in_short, printable


@dataclass(frozen=True)
class Location:
    """A place in a text that a person wrote: line and column count from 1; None where there is none to name."""

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        parts = [self.file] + [str(n) for n in (self.line, self.column) if n is not None]
        return ":".join(parts)


class FlashgenError(Exception):
    """The root of the catalogue. In its message what could not be seen, of what it quotes, stands as an escape."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class SpecError(FlashgenError):
    """A spec is malformed. `location` is the place, `found` what stands there, `expected` what would be accepted."""

    def __init__(self, location: Location, found: str, expected: str) -> None:
        self.location, self.found, self.expected = location, found, expected
        letter = foreign_letter(found)
        shown = in_short(found, 200) + (f" with {letter}" if letter else "")
        super().__init__(f"{in_short(str(location), 300)}: {shown}; expected {in_short(expected, 1000)}")


class ExpressionError(SpecError):
    """An expression of a spec does not parse or does not type-check."""


class UnreadError(SpecError):
    """A spec has an input or a runtime param, its `name`, of which nothing is left in what is computed."""

    def __init__(self, location: Location, found: str, expected: str, name: str) -> None:
        self.name = name
        super().__init__(location, found, expected)


class ModError(FlashgenError, ValueError):
    """A mod of FlexAttention does what the language does not have. `location` is the line of the mod."""

    def __init__(self, location: Location, found: str) -> None:
        self.location, self.found = location, found
        super().__init__(f"{in_short(str(location), 300)}: {in_short(found, 1000)}")


class ModelError(FlashgenError, ValueError):
    """A model of transformers asks for what generated attention does not have. The message names its option."""


class SpecWarning(UserWarning):
    """A spec is well formed, but may not say what was meant."""


class UsageError(FlashgenError):
    """A command or a function of the Python API was called with something that it cannot serve."""


class EnvironmentProblem(FlashgenError):
    """Something outside flashgen is missing or broken: no GPU, no space, no permission."""


class CheckFailed(FlashgenError):
    """What was checked does not hold. `found` is what was done and seen until then, where there is more to show."""

    exit_code = 1

    def __init__(self, message: str, found: object = None) -> None:
        super().__init__(message)
        self.found = found


class VerificationFailed(CheckFailed):
    """A generated kernel does not compute its own formula within the error budget."""


class TuningFailed(CheckFailed):
    """No config of the search space ran to a valid measurement."""


class CompilationFailed(CheckFailed):
    """A generated kernel does not compile for a target, or does not fit it."""


class EditFailed(CheckFailed):
    """A generated module has no text that an edit of the ablation replaces: the templates have changed."""


def add_note(error: BaseException, text: str) -> None:
    """Note something of an error on its way; Python has a method for it from 3.11 on."""
    error.__notes__ = [*getattr(error, "__notes__", ()), text]  # type: ignore[attr-defined]
