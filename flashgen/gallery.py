"""The gallery: specs of the current folder's `variants`, by name."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from flashgen.errors import EnvironmentProblem, UsageError
from flashgen.files import reason
from flashgen.printable import in_short

GALLERY = Path("variants")


def gallery() -> list[Path]:
    """The specs of the gallery in the current folder, by name; EnvironmentProblem where it cannot be searched."""
    try:
        return sorted(GALLERY / name for name in os.listdir(GALLERY) if name.endswith(".yaml"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise EnvironmentProblem(f"{GALLERY}/ cannot be searched for specs: {reason(error)}") from error


def resolve(spec: str) -> Path:
    """A path stands for itself; a bare name for the gallery's file of that name.

    UsageError where there is none, EnvironmentProblem where it cannot be looked for.
    """
    try:
        found = _found(spec)
    except OSError as error:
        raise EnvironmentProblem(
            f"the spec {in_short(spec, 100)!r} cannot be looked for here and in {GALLERY}/: {reason(error)}"
        ) from error
    if found is not None:
        return found
    names = [entry.stem for entry in gallery()]
    near = get_close_matches(spec, names, n=3)
    known = f"did you mean {', '.join(near)}?" if near else f"the gallery has {', '.join(names) or 'no spec here'}"
    raise UsageError(f"no spec {spec!r}: found neither a file nor {_named(spec)}; {known}")


def _found(spec: str) -> Path | None:
    path = Path(spec)
    if path.suffix or os.sep in spec or path.is_file():
        return path
    if _named(spec).is_file():
        return _named(spec)
    # A folder or a pipe is refused as such.
    return path if spec and path.exists() else None


def _named(spec: str) -> Path:
    return GALLERY / f"{spec}.yaml"
