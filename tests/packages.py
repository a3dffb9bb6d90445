"""The files of generated packages as one text, and mistakes made in them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def whole(files: Mapping[str, str]) -> str:
    """What `render` gives, as one text."""
    return "\n\n".join(files.values())


def files_of(package: Path) -> dict[str, str]:
    """The texts of a package on disk by the names of their files."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(package.glob("*.py"))}


def changed(files: Mapping[str, str], *changes: tuple[str, str]) -> dict[str, str]:
    """The files with each old text replaced by a new one, wherever it stands; it must stand somewhere."""
    found = dict(files)
    for old, new in changes:
        assert any(old in text for text in found.values()), f"no file has {old!r}"
        found = {name: text.replace(old, new) for name, text in found.items()}
    return found


def change(package: Path, *changes: tuple[str, str]) -> None:
    """The same on disk."""
    for name, text in changed(files_of(package), *changes).items():
        (package / name).write_text(text, encoding="utf-8")
