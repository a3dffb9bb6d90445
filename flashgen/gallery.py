"""The gallery: specs of the current folder's `variants`, by name."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from flashgen.errors import UsageError

GALLERY = Path("variants")


def gallery() -> list[Path]:
    """The specs of the gallery in the current folder, by name."""
    return sorted(GALLERY.glob("*.yaml"))


def resolve(spec: str) -> Path:
    """A path stands for itself; a bare name for the gallery's file of that name."""
    path = Path(spec)
    if path.suffix or os.sep in spec or path.is_file():
        return path
    named = GALLERY / f"{spec}.yaml"
    if named.is_file():
        return named
    if path.exists():  # A folder or a pipe, which is refused as such.
        return path
    names = [entry.stem for entry in gallery()]
    near = get_close_matches(spec, names, n=3)
    known = f"did you mean {', '.join(near)}?" if near else f"the gallery has {', '.join(names) or 'no spec here'}"
    raise UsageError(f"no spec {spec!r}: found neither a file nor {named}; {known}")
